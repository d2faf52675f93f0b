"""The JVM of this process: Spark keeps one, and reaches it through a pipe and a socket."""

from __future__ import annotations

import contextlib
import logging
import subprocess

from pyspark import SparkContext

_END_SECONDS = 2.0


def process_id() -> int:
    """Return its process id; 0 while there is none."""
    process = _process()
    if process is not None:
        return process.pid
    # Under spark-submit it has started us, not we it; so it is asked.
    jvm = SparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid()) if jvm is not None else 0


def await_answer() -> None:
    """Return when it has answered, or at once if there is none to ask. One that hangs does not answer, and lives on."""
    process, jvm = _process(), SparkContext._jvm
    if jvm is None or process is None or process.poll() is not None:
        return
    with contextlib.suppress(Exception):  # whoever needs more of it reports that it has ended
        jvm.java.lang.System.nanoTime()


def end() -> None:
    """End it, if it still runs: it would also end with us, but some time later."""
    process = _process()
    if process is None or process.poll() is not None:
        return
    _expect_loss()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # it ends when this pipe does
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        kill()


def kill() -> None:
    """Kill it; its checkpoint is safe at any moment."""
    process = _process()
    if process is not None:
        _expect_loss()
        process.kill()


def _expect_loss() -> None:
    """Keep py4j from logging a traceback of what it asks at this moment, such as to free an object: that is lost."""
    logging.getLogger().addFilter(_is_not_py4j)  # of the root itself: that is where py4j logs


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _process() -> subprocess.Popen[bytes] | None:
    return getattr(SparkContext._gateway, "proc", None)
