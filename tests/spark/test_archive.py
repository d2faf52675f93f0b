"""The archive of classes is really used: a JVM ignores one that does not fit, without a word."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tocsin.provision.java import find_java

# A job's start and first batch, in a JVM of its own, with the archive made before if it is missing. The archive is the
# test's own: later jobs had no other than this one of few classes, and started half as fast as with one of their own.
PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import functions as F
from tocsin.project.settings import Settings
from tocsin.sparkjob import class_archive as archive, jvm, session

archive.own_archive = lambda: Path(sys.argv[1]) / "own.jsa"
settings = Settings(state=Path(sys.argv[1]))
scratch = session.clean_scratch(settings, "detector:archive")
made = archive.own_archive().exists()
options = archive.options
archive.options = lambda *given: [*options(*given), f"-Xlog:class+load:file={sys.argv[1]}/classes.log"]
spark = session.streaming_session(settings, job="detector:archive", slots=1)
assert spark.range(1).select(F.lit("x")).first()[0] == "x"
assert not {"pandas", "pyarrow"} & sys.modules.keys()  # 60 MB that a job without Python code does not need
assert spark.range(1).select(F.udf(lambda n: n + 1, "bigint")("id")).first()[0] == 1
assert spark.range(10).groupBy().sum().first()[0] == 45
if not made:
    making = archive.ArchiveBuild(settings, scratch, jvm.process_id())
    end = time.monotonic() + 800
    while not archive.own_archive().exists():
        assert time.monotonic() < end
        time.sleep(0.2)
spark.stop()
jvm.end()
print("used" if made else "made")
"""
BATCH = """
import sys
from pathlib import Path
from tocsin.project.settings import Settings
from tocsin.sparkjob import class_archive as archive, jvm, session

archive.own_archive = lambda: Path(sys.argv[1]) / "own.jsa"
options = archive.batch_options
archive.batch_options = lambda settings: [*options(settings), f"-Xlog:class+load:file={sys.argv[1]}/batch.log"]
with session.running_batch(Settings(state=Path(sys.argv[1])), "backfill:archive") as spark:
    assert spark.range(10).groupBy().sum().first()[0] == 45
jvm.end()
print("used")
"""


def start(folder: Path, program: str = PROGRAM) -> str:
    environment = os.environ | {"JAVA_HOME": str(find_java().home)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=environment, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()[-1]  # before it, a line of the log about the archive
    assert said in ("made", "used")
    return said


@pytest.mark.long
def test_classes_come_from_the_archive(tmp_path: Path) -> None:
    long_unused, young = tmp_path / "long_unused.jsa", tmp_path / "young.jsa"
    for other, days in ((long_unused, 8), (young, 6)):
        other.touch()
        os.utime(other, (0, time.time() - days * 86_400))
    assert start(tmp_path) == "made"
    assert young.exists(), "another Java may be in use in turn with this one"
    assert not long_unused.exists()
    for old in tmp_path.glob("classes.log*"):  # of the JVM that made it, too
        old.unlink()
    assert start(tmp_path) == "used"
    start(tmp_path, BATCH)
    for name in ("classes.log", "batch.log"):
        loaded = (tmp_path / name).read_text().splitlines()
        shared = [line for line in loaded if "shared objects file" in line]
        spark = [line for line in shared if " org.apache.spark." in line]
        assert len(shared) > 0.6 * len(loaded), f"{name}: {len(shared)} of {len(loaded)}"
        assert len(spark) > 1000, name
