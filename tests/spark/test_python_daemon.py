"""What a Python worker of Spark does between its tasks."""

from __future__ import annotations

import os
import subprocess
import sys

import pyspark

from tests.rig.waiting import patient
from tocsin.setup.java import find_java

SCRIPT = """
import sys, time
from pyspark.sql import SparkSession, functions as F

options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
           "spark.python.daemon.module": "tocsin.spark.python_daemon",
           "spark.python.worker.tracebackDumpIntervalSeconds": "1"}
spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()

@F.udf("int")
def busy_for(seconds):
    time.sleep(seconds)
    return seconds

for name, busy, idle in (("warm", 0, 0), ("idle", 0, 2), ("busy", 3, 0), ("idle again", 0, 2)):
    print("<", name, file=sys.stderr, flush=True)
    spark.range(1).select(busy_for(F.lit(busy))).collect()
    time.sleep(idle)
"""


def test_a_worker_dumps_its_stack_while_a_task_keeps_it_busy_and_not_while_it_waits_for_one() -> None:
    own = {"SPARK_HOME": pyspark.__path__[0], "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(
        command, env=os.environ | own, stderr=subprocess.PIPE, text=True, timeout=patient(120), check=True
    )
    dumps = {part.splitlines()[0].strip(): part.count("Timeout (0:00:01)!") for part in run.stderr.split("<")[1:]}
    assert dumps["busy"] >= 1
    assert (dumps["idle"], dumps["idle again"]) == (0, 0)
    assert "in busy_for" in run.stderr


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
