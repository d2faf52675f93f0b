"""The JVM of this process: Spark keeps one, and reaches it through a pipe and a socket."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from typing import Any

from pyspark import SparkContext

from tocsin.runtime.process_exit import ExitCode

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


def end_after(seconds: float) -> None:
    """Let it end by itself in so many seconds, unless this is called again before; nothing if there is none.

    It keeps this time also while this process stands still, and after it stood still itself. Its Runtime.halt is called
    by a thread of its own that needs nothing of Python.
    """
    if SparkContext._jvm is None:
        return
    _halt.schedule(time.monotonic() + seconds)


def halt_at_end() -> None:
    """Let it halt as soon as this process has ended, or ends it, in place of an orderly end.

    The pipe between them breaks then, and Spark would stop one part after the other, for up to five seconds on a busy
    machine. Tasks that have lost a part of theirs would go on computing meanwhile, and writing what comes of it.
    """
    if _process() is not None:  # under spark-submit its exit code is ours
        _halt.at_end()


class _Halt:
    """What halts the JVM: a timer, and a hook of its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a timer that two threads set, and only one of them cancels, halts a good JVM
        self._hooked = False
        self._jvm: Any = None
        self._timer: Any = None
        self._task: Any = None
        self._pending: Any = None

    def schedule(self, deadline: float) -> None:
        """Set the timer to `deadline` on the monotonic clock, and take back what was set before."""
        with self._lock:
            self._prepare()
            before = self._pending
            unit = self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
            milliseconds = round(max(0.0, deadline - time.monotonic()) * 1000)
            self._pending = self._timer.schedule(self._task, milliseconds, unit)
            if before is not None:
                before.cancel(False)

    def at_end(self) -> None:
        """Halt it when it begins to end; all hooks begin at once."""
        with self._lock:
            self._prepare()
            if not self._hooked:
                self._jvm.java.lang.Runtime.getRuntime().addShutdownHook(self._jvm.java.lang.Thread(self._task))
                self._hooked = True

    def _prepare(self) -> None:
        jvm: Any = SparkContext._jvm
        gateway: Any = SparkContext._gateway
        if self._jvm is jvm:
            return
        handles, runtime = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.Runtime.getRuntime()
        form = jvm.java.lang.invoke.MethodType.fromMethodDescriptorString("(I)V", None)
        halt = handles.publicLookup().findVirtual(runtime.getClass(), "halt", form)
        arguments = gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = runtime, int(ExitCode.FAILED)
        bound = handles.insertArguments(halt, 0, arguments)
        runnable = jvm.java.lang.Class.forName("java.lang.Runnable")
        self._task = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(runnable, bound)
        self._timer = jvm.java.util.concurrent.ScheduledThreadPoolExecutor(1)
        self._jvm, self._pending, self._hooked = jvm, None, False


_halt = _Halt()


def _expect_loss() -> None:
    """Keep py4j from logging a traceback of what it asks at this moment, such as to free an object: that is lost."""
    logging.getLogger().addFilter(_is_not_py4j)  # of the root itself: that is where py4j logs


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _process() -> subprocess.Popen[bytes] | None:
    return getattr(SparkContext._gateway, "proc", None)
