"""Begin and end the entry points in `spark_jobs/`: arguments, settings, lock, signals, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from tocsin.kafka.reporter import Reporter
from tocsin.model.errors import ConfigError, TocsinError, TransientError
from tocsin.model.job_report import JobState
from tocsin.project.settings import Settings, load_settings
from tocsin.runtime import logs, private, process_exit
from tocsin.runtime.failures import Unwritable, cause_of, in_a_line, is_disk
from tocsin.runtime.lead import Lead
from tocsin.runtime.lock import LockHeld
from tocsin.runtime.process_exit import ExitCode, on_signals
from tocsin.sparkjob.engine import jvm
from tocsin.sparkjob.query.query_loop import QueryLoop
from tocsin.sparkjob.query.work import Work
from tocsin.sparkjob.session import clean_scratch, scratch_folder
from tocsin.storage.claim import claim

_STOP_SECONDS = 13.0

log = structlog.get_logger()


def main(
    arguments: list[str] | None,
    *,
    doc: str,
    job_of: Callable[[str], str],
    work_of: Callable[[Settings, str], Work],
) -> int:
    """Run the job named by `arguments` until SIGTERM; returns its `ExitCode`."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("name", help="the source or detector")
    parser.add_argument("--beside", action="store_true", help="run beside the leading process, to take over from it")
    parser.add_argument("--label", action="append", default=[], help="key=value, shown in the process list, not used")
    parsed = parser.parse_args(arguments)
    name: str = parsed.name
    logs.configure(job_of(name))
    logs.keep_bounded()
    _offer_to_the_kernel()
    stop = threading.Event()
    on_signals(stop)
    threading.Thread(target=_end_in_time, args=(stop,), name="deadline", daemon=True).start()
    run = functools.partial(_run, job_of(name), lambda settings: work_of(settings, name), stop, beside=parsed.beside)
    return process_exit.record(code_of(run))


def _offer_to_the_kernel() -> None:
    """Let Linux end this process, its JVM or its Python workers first when memory runs out, not the broker or a DB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def code_of(run: Callable[[], int]) -> int:
    """Call `run`; returns its exit code, or logs its error and returns the code that says how it failed."""
    try:
        return run()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return ExitCode.MISCONFIGURED
    except LockHeld as error:
        log.error("job already running", error=str(error))
        return ExitCode.LOCKED
    except OSError as error:
        log.error("folder not usable", error=str(error))
        return ExitCode.UNWRITABLE if is_disk(error) else ExitCode.FAILED
    except TocsinError as error:
        log.error("job not possible", error=str(error), retry=isinstance(error, TransientError))
        return ExitCode.FAILED
    except Exception as error:
        log.exception("job failed", error=in_a_line(error))
        return ExitCode.FAILED


def _run(name: str, work_of: Callable[[Settings], Work], stop: threading.Event, *, beside: bool) -> int:
    settings = load_settings()
    private.protect(settings.state)
    with Lead(settings, name, beside=beside) as lead:
        reporter = Reporter(settings, name, beside=not lead.held, await_answer=jvm.await_answer)
        lead.follow(reporter.lead)
        return _report(settings, reporter, lambda: _claimed(settings, work_of), stop)


def _claimed(settings: Settings, work_of: Callable[[Settings], Work]) -> Work:
    """Make the work of a job on checkpoints that no other installation writes."""
    claim(settings)
    return work_of(settings)


def _end_in_time(stop: threading.Event) -> None:
    """End this process and its JVM 13 seconds after it was asked to stop, whatever Spark is busy with."""
    stop.wait()
    time.sleep(_STOP_SECONDS)
    log.warning("Spark did not stop in time, JVM killed", seconds=_STOP_SECONDS)
    jvm.kill()
    os._exit(ExitCode.OK)


def _report(settings: Settings, reporter: Reporter, work: Callable[[], Work], stop: threading.Event) -> int:
    """Run the job, and let its last report say how it ended."""
    try:
        _live(settings, work(), reporter, stop)
    except BaseException as error:
        if isinstance(error, Unwritable) or (isinstance(error, OSError) and is_disk(error)):
            log.error("state folder not writable, make room and restart", error=str(error)[:500])
            reporter.close(JobState.FAILED, f"the state folder {settings.state} cannot be written: {str(error)[:200]}")
            return ExitCode.UNWRITABLE
        cause = cause_of(error, settings.project)
        reporter.close(JobState.FAILED, str(cause), cause)
        if isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise
        log.exception("job failed")
        return ExitCode.FAILED
    reporter.close(JobState.STOPPED)
    log.info("stopped")
    return ExitCode.OK


def _live(settings: Settings, work: Work, reporter: Reporter, stop: threading.Event) -> None:
    """Run `work` until `stop` is set, then leave nothing running. The caller leads the job, or waits to do so.

    Raises:
        ConfigError: something must be fixed first.
        Unwritable: the checkpoint cannot be written; a restart helps once there is room.
        TransientError: Kafka fails again and again.
        RuntimeError: the query failed for another reason; a restart may help.
    """
    clean_scratch(settings, work.job)
    reporter.update(version=work.version)  # now: the session takes seconds, and Kafka may be away
    loop = QueryLoop(settings, work, reporter, stop)
    try:
        loop.run_until_stopped()
    finally:
        reporter.update(state=JobState.STOPPING, reason="")
        loop.close()
        shutil.rmtree(scratch_folder(settings, work.job), ignore_errors=True)
