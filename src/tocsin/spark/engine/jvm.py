"""The JVM of this process: Spark keeps one, and reaches it through a pipe and a socket."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from typing import Any

from pyspark import SparkContext

from tocsin.platform.process_exit import ExitCode

_END_SECONDS = 2.0
_hooked: Any = None  # the JVM that halts at its end


def process_id() -> int:
    """Return its process id; 0 while there is none."""
    process = _process()
    if process is not None:
        return process.pid
    # Under spark-submit it has started us, not we it; so it is asked.
    jvm = SparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid()) if jvm is not None else 0


def is_alive() -> bool:
    """Return whether the JVM that this process has started lives."""
    process = _process()
    return process is not None and process.poll() is None


def has_ended() -> bool:
    """Return whether the JVM that this process has started is gone; whoever asks has lost a connection to it."""
    process = _process()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process is not None and process.wait(_END_SECONDS) is not None
    return False


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
    expect_loss()
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
        expect_loss()
        process.kill()


def halt_at_end() -> None:
    """Let it halt as soon as this process has ended, or ends it, in place of an orderly end.

    The pipe between them breaks then, and Spark would stop one part after the other, for up to five seconds on a busy
    machine. Tasks that have lost a part of theirs would go on computing meanwhile, and writing what comes of it.
    """
    global _hooked
    jvm: Any = SparkContext._jvm
    if _process() is None or _hooked is jvm:  # under spark-submit its exit code is ours
        return
    _hooked, gateway = jvm, SparkContext._gateway
    handles, runtime = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.Runtime.getRuntime()
    form = jvm.java.lang.invoke.MethodType.fromMethodDescriptorString("(I)V", None)
    halt = handles.publicLookup().findVirtual(runtime.getClass(), "halt", form)
    arguments = gateway.new_array(jvm.java.lang.Object, 2)  # type: ignore[union-attr]  # there is one with a JVM
    arguments[0], arguments[1] = runtime, int(ExitCode.FAILED)
    bound = handles.insertArguments(halt, 0, arguments)
    runnable = jvm.java.lang.Class.forName("java.lang.Runnable")
    task = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(runnable, bound)
    runtime.addShutdownHook(jvm.java.lang.Thread(task))  # all hooks begin at once


def log_errors(*, wanted: bool) -> None:
    """Let Spark and py4j log; with `wanted` false nothing: what is stopped logs errors and tracebacks for seconds."""
    logging.getLogger("py4j").setLevel(logging.NOTSET if wanted else logging.CRITICAL)
    context = SparkContext._active_spark_context
    if context is not None and _process() is not None:  # an engine logs for others, too
        with contextlib.suppress(Exception):  # the JVM has ended
            context.setLogLevel("WARN" if wanted else "OFF")


def expect_loss() -> None:
    """Keep py4j from logging a traceback of what it asks at this moment, such as to free an object: that is lost."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)  # of the root itself: there py4j logs, too


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _process() -> subprocess.Popen[bytes] | None:
    return getattr(SparkContext._gateway, "proc", None)
