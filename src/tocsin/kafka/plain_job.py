"""Run a job that is one Python process, without Spark: its lock, its reports, its exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping

import structlog

from tocsin.kafka.access_check import check_access
from tocsin.kafka.reporter import Reporter
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import FailureCause, JobState
from tocsin.model.names import JobName
from tocsin.project.settings import Settings, load_settings
from tocsin.runtime import logs, private, process_exit
from tocsin.runtime.lead import try_lead
from tocsin.runtime.lock import LockHeld
from tocsin.runtime.process_exit import ExitCode

_LONGEST_STOP = 12.0

Work = Callable[[Settings, Reporter, threading.Event], None]
"""Does the work of a job until the event is set."""


def run_program(
    program: str, jobs: Mapping[str, Work], arguments: list[str] | None = None, *, is_server: bool = False
) -> int:
    """Run one of `jobs`, named by the arguments, until SIGTERM; returns its `ExitCode`.

    One that `is_server` only answers requests.
    """
    job = _argument(program, arguments, choices=list(jobs))
    return _run_job(job, jobs[job], is_server=is_server)


def run_named(program: str, kind: str, work: Callable[[str], Work], arguments: list[str] | None = None) -> int:
    """Run the job of `kind` that the arguments name, whose work is `work` of that name; see `run_program`."""
    name = _argument(program, arguments)
    return _run_job(str(JobName(kind, name)), work(name))


def _argument(program: str, arguments: list[str] | None, choices: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("job", choices=choices)
    parser.add_argument("--label", action="append", default=[], help="name=value, shown in the process list, not used")
    return str(parser.parse_args(arguments).job)


def _run_job(job: str, work: Work, *, is_server: bool = False) -> int:
    logs.configure(job)
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: _ask_to_stop(stop))
    return process_exit.record(_leading(job, work, stop, is_server=is_server))


def _leading(job: str, work: Work, stop: threading.Event, *, is_server: bool) -> int:
    try:
        settings = load_settings()
        private.protect(settings.state)
        with try_lead(settings, settings.checkpoint(job) / "lock"):
            return _run(Reporter(settings, job), work, settings, stop, is_server=is_server)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return ExitCode.MISCONFIGURED
    except LockHeld as error:
        print(error, file=sys.stderr)
        return ExitCode.LOCKED
    except OSError as error:
        print(f"cannot write the state folder: {error}", file=sys.stderr)
        return ExitCode.UNWRITABLE


def _run(reporter: Reporter, work: Work, settings: Settings, stop: threading.Event, *, is_server: bool) -> int:
    last, reason = JobState.FAILED, "failed; see its log"
    try:
        structlog.get_logger().info("started", pid=os.getpid())
        if not is_server:  # it must answer at once, and a broker that is away holds the check up for ten seconds
            with contextlib.suppress(TransientError):  # these jobs do what they can without Kafka
                check_access(settings, reporter.report().job)
        work(settings, reporter, stop)
        last, reason = JobState.STOPPED, ""
        return ExitCode.OK
    except ConfigError as error:
        reason = str(error)
        raise
    except Exception as error:
        structlog.get_logger().exception("job failed")
        reason = f"{type(error).__name__}: {error}"
        return ExitCode.FAILED
    finally:
        reporter.close(last, reason, FailureCause(what=reason) if reason else None)


def _ask_to_stop(stop: threading.Event) -> None:
    """Stop soon, and for certain before whoever asked loses patience: a server may take long to answer.

    These jobs find everything again after any kind of end.
    """
    if not stop.is_set():
        last = threading.Timer(_LONGEST_STOP, os._exit, args=[ExitCode.OK])
        last.daemon = True
        last.start()
    stop.set()
