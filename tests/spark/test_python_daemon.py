"""What a Python worker of Spark does between its tasks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.rig.waiting import patient
from tocsin.setup.java import find_java

SCRIPT = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from tocsin.setup.java import log_and_archive
from tocsin.spark import session

log = Path(sys.argv[1])
options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
           "spark.driver.extraClassPath": session.connector(),
           "spark.driver.extraJavaOptions": " ".join(log_and_archive()),
           "spark.python.daemon.module": "tocsin.spark.python_daemon",
           "spark.python.worker.tracebackDumpIntervalSeconds": "1"}
spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()

@F.udf("int")
def busy_until_dumped(number):
    while number and "in busy_until_dumped" not in log.read_text():
        time.sleep(0.05)
    return number

for number in (0, 1):
    spark.range(1).select(busy_until_dumped(F.lit(number))).collect()
    print("idle", file=sys.stderr, flush=True)
    time.sleep(1.5)
    print("busy", file=sys.stderr, flush=True)
"""


@pytest.mark.long
def test_a_worker_dumps_its_stack_while_a_task_keeps_it_busy_and_not_while_it_waits_for_one(tmp_path: Path) -> None:
    own = {"SPARK_HOME": pyspark.__path__[0], "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(command, env=os.environ | own, stderr=log, timeout=patient(120), check=True)
    idle = re.findall(r"^idle\n(.*?)^busy\n", (tmp_path / "log").read_text(), re.MULTILINE | re.DOTALL)
    assert ["Timeout (0:00:01)!" in log for log in idle] == [False, False]


def test_a_worker_looks_for_garbage_among_what_it_has_imported_only_once() -> None:
    """Each later time would take as long as a short batch."""
    script = """
import gc
import tocsin.spark.python_daemon
from pyspark import daemon

daemon.gc.collect()
imported = gc.get_freeze_count()
later = [[] for _ in range(1000)]
daemon.gc.collect()
print(imported > 10_000, gc.get_freeze_count() <= imported)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["True", "True"]
