"""The end of a JVM, as seen in the log of the job that had it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tocsin.spark
from tocsin.setup.java import find_java
from tocsin.spark.engine import jvm

# A thread that waits for an answer stands for py4j's own, which tells the JVM what may be freed. Bytes that the JVM has
# not read when it ends make its kernel reset the connection.
PROGRAM = """
import contextlib, threading, time
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tocsin.platform import logs
from tocsin.setup.java import log_and_archive
from tocsin.spark import session
from tocsin.spark.engine import jvm

logs.configure("detector:tests")
options = {"spark.ui.enabled": "false", "spark.driver.extraClassPath": session.connector(),
           "spark.driver.extraJavaOptions": " ".join(log_and_archive())}
spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
gateway = spark.sparkContext._gateway
spark.stop()
connections, lost = [], threading.Event()

def ask():
    gateway.jvm.java.lang.System.nanoTime()
    connections.append(gateway._gateway_client.get_thread_connection())
    with contextlib.suppress(Py4JError):
        gateway.jvm.java.lang.Thread.sleep(600_000)
    lost.set()

threading.Thread(target=ask, daemon=True).start()
while not connections:
    time.sleep(0.01)
time.sleep(0.5)
connections[0].socket.sendall(b"unread")
jvm.{how}()
assert lost.wait(60)
print("lost")
"""


def ended(how: str) -> str:
    """What a program has logged whose JVM was ended in that way, while it was asked."""
    environment = os.environ | {"JAVA_HOME": str(find_java().home)}
    program = PROGRAM.replace("{how}", how)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["lost"], done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize("how", ["kill", pytest.param("end", marks=pytest.mark.long)])
def test_what_is_asked_of_a_jvm_while_it_ends_is_no_error_in_the_log(how: str) -> None:
    assert "Traceback" not in ended(how)


def test_no_logger_of_spark_logs_errors_while_a_query_is_stopped(spark: SparkSession) -> None:
    declared = (Path(tocsin.spark.__file__).parent / "log4j2.properties").read_text()
    names = re.findall(r"^logger\.\w+\.name = (.+)$", declared, re.MULTILINE)
    assert len(names) > 5
    manager = spark.sparkContext._gateway.jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
    try:
        jvm.log_errors(wanted=False)
        assert [name for name in names if manager.getLogger(name).isErrorEnabled()] == []
    finally:
        jvm.log_errors(wanted=True)
    assert manager.getLogger(names[0]).isErrorEnabled()


def test_files_of_this_machine_are_written_without_a_process_for_each(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop's own file system starts `chmod` for each."""
    java: Any = spark.sparkContext._jvm
    jvm_pid = java.java.lang.ProcessHandle.current().pid()

    def faults_of_ended_children() -> str:
        return Path(f"/proc/{jvm_pid}/stat").read_text().rpartition(")")[2].split()[8]

    before = faults_of_ended_children()
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "rows"))
    assert faults_of_ended_children() == before
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "rows").iterdir())
