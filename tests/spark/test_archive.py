"""The archive of classes that set-up made is really used: a JVM ignores one that does not fit, without a word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.setup.java import find_java

# The starts of a job and of a batch, each in a JVM of its own.
JOB = """
import sys
from pathlib import Path
from pyspark.sql import functions as F
from tocsin.declare.settings import Settings
from tocsin.spark import session
from tocsin.spark.engine import jvm

spark = session.streaming_session(Settings(state=Path(sys.argv[1])), job="detector:archive", slots=1)
assert spark.range(1).select(F.lit("x")).first()[0] == "x"
assert not {"numpy", "pandas", "pyarrow"} & sys.modules.keys()  # 80 MB that a job without Python code does not need
assert spark.range(10).groupBy().sum().first()[0] == 45
spark.stop()
jvm.end()
"""
BATCH = """
import sys
from pathlib import Path
from tocsin.declare.settings import Settings
from tocsin.spark.batch_session import running_batch
from tocsin.spark.engine import jvm

with running_batch(Settings(state=Path(sys.argv[1])), "backfill:archive") as spark:
    assert spark.range(10).groupBy().sum().first()[0] == 45
jvm.end()
"""


def loaded_by(program: str, folder: Path) -> list[str]:
    """Where the JVM of `program` has taken each of its classes from."""
    log = folder / "classes.log"
    options = f"--conf spark.driver.defaultJavaOptions=-Xlog:class+load:file={log}:none:filecount=0 pyspark-shell"
    environment = os.environ | {"JAVA_HOME": str(find_java().home), "PYSPARK_SUBMIT_ARGS": options}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return log.read_text().splitlines()


@pytest.mark.parametrize("program", [JOB, pytest.param(BATCH, marks=pytest.mark.long)], ids=["job", "batch"])
def test_classes_come_from_the_archive(tmp_path: Path, program: str) -> None:
    loaded = loaded_by(program, tmp_path)
    shared = [line for line in loaded if "shared objects file" in line]
    spark = [line for line in shared if line.startswith("org.apache.spark.")]
    assert len(shared) > 0.6 * len(loaded), f"{len(shared)} of {len(loaded)}"
    assert len(spark) > 1000
