"""Run a job or a batch as a program: `python -m tocsin.job KIND NAME`.

Arguments, logs, signals, lock, reports and exit codes are the same for all of them. The rest is the function that its
kind names in `tocsin.declare.model.job_kinds`: jobs get a `Job`, batches a `Batch`.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 asked to stop, or done; 1 failed; 2 something
must be fixed first; 3 another copy runs; 4 the disk is full or not writable; 10 a batch has published with a warning;
20 a critical verdict keeps a day from being published.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pkgutil import resolve_name
from typing import Any

import structlog

from tocsin.declare.model.errors import ConfigError, StartAgain, TocsinError, TransientError
from tocsin.declare.model.job_kinds import BATCHES, KINDS, BatchKind, JobKind
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import JobName
from tocsin.declare.settings import Settings, load_settings
from tocsin.platform import logs, private, process_exit
from tocsin.platform.environments import READERS, by_their_pythons
from tocsin.platform.failures import Unwritable, cause_of, in_a_line, is_disk
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.topics import check_access
from tocsin.platform.lock import Lead, LockHeld
from tocsin.platform.process_exit import ExitCode, on_signals

# Supervision ends a job by force after 20 seconds.
_STOP_SECONDS = 13.0
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "day": {"action": "append", "type": date.fromisoformat, "default": [], "help": "work on it, whether due or not"},
    "run-id": {"default": "", "help": "a retry with the same id belongs to the same run"},
    "missing": {"choices": ["refuse", "leave-out"], "default": "refuse", "help": "days that are nowhere"},
}

log = structlog.get_logger()


@dataclass
class Job:
    """A job that this process runs.

    Attributes:
        name: the name behind its kind; empty where the kind has one job.
        kill: called before this process ends because the job took too long to stop.
    """

    name: str
    settings: Settings
    reporter: Reporter
    stop: threading.Event
    kill: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch that this process runs; of its options, those that its kind takes.

    Attributes:
        days: only on these; all that need it if empty.
        run_id: a retry with the same id belongs to the same run.
    """

    names: tuple[str, ...]
    settings: Settings
    days: tuple[date, ...] = ()
    run_id: str = ""
    leave_out: bool = False

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]


def main(arguments: list[str] | None = None, *, run: Callable[[Job], None] | None = None) -> int:
    """Run the job or batch that `arguments` name (None: this process's), a job until SIGTERM; returns its `ExitCode`.

    `run` replaces the function of the job's kind.
    """
    options = _parser().parse_args(arguments)
    if options.kind in BATCHES:
        return _run_batch(BATCHES[options.kind], options)
    return _run_job(KINDS[options.kind], options.name, run, beside=options.beside)


def exit_code_of(run: Callable[[], int]) -> int:
    """Call `run`; returns its exit code, or logs its error and returns the code that says how it failed."""
    try:
        return run()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return ExitCode.MISCONFIGURED
    except LockHeld as error:
        log.error("job already running", error=str(error))
        return ExitCode.LOCKED
    except (OSError, Unwritable) as error:
        log.error("folder not usable", error=str(error)[:500])
        return ExitCode.UNWRITABLE if isinstance(error, Unwritable) or is_disk(error) else ExitCode.FAILED
    except TocsinError as error:
        log.error("job failed", error=str(error), retry=isinstance(error, TransientError))
        return ExitCode.FAILED
    except Exception as error:
        log.exception("job failed", error=in_a_line(error))
        return ExitCode.FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tocsin.job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind in KINDS.values():
        words = kinds.add_parser(kind.word)
        if kind.folder or kind.are_named:
            words.add_argument("name")
        words.add_argument("--beside", action="store_true", help="run beside the leading process, to take over from it")
        words.add_argument("--label", action="append", help="key=value, shown in the process list, not used")
        words.set_defaults(name="")
    for batch in BATCHES.values():
        words = kinds.add_parser(batch.word)
        words.add_argument("names", nargs="+" if batch.takes_several else 1, metavar=batch.argument.upper())
        for option in batch.options:
            words.add_argument(f"--{option}", **_OPTIONS[option])
    return parser


def _run_batch(kind: BatchKind, options: argparse.Namespace) -> int:
    function = resolve_name(kind.run)
    logs.configure(str(JobName(kind.word, options.names[0])))

    def run() -> int:
        settings = load_settings()
        private.protect(settings.state)
        names, code = options.names, 0
        if (folder := f"{kind.argument}s") in READERS:
            given = {option: getattr(options, option.replace("-", "_")) for option in kind.options}
            lists = {option: value if isinstance(value, list) else [value] for option, value in given.items()}
            more = [f"--{option}={value}" for option, values in lists.items() for value in values if value]
            again = ["-m", "tocsin.job", kind.word, *more]
            names, code = by_their_pythons(settings, names, lambda some: [*again, *some], folder)
        batch = Batch(
            names=tuple(names),
            settings=settings,
            days=tuple(getattr(options, "day", ())),
            run_id=getattr(options, "run_id", ""),
            leave_out=getattr(options, "missing", "") == "leave-out",
        )
        return max(code, int(function(batch)) if names else 0)

    return process_exit.record(exit_code_of(run))


def _run_job(kind: JobKind, name: str, run: Callable[[Job], None] | None, *, beside: bool) -> int:
    job, stop, ended = str(JobName(kind.word, name)), threading.Event(), threading.Event()
    function = run or resolve_name(kind.run)  # first: what libraries log when they are imported is of no use
    logs.configure(job)
    logs.keep_bounded()
    on_signals(stop)

    def execute() -> int:
        settings = load_settings()
        private.protect(settings.state)
        with Lead(settings, job, beside=beside) as lead:
            reporter = Reporter(settings, job, beside=not lead.is_leading)
            lead.follow(reporter.lead)
            made = Job(name, settings, reporter, stop)
            threading.Thread(target=_end_in_time, args=(made, ended), name="deadline", daemon=True).start()
            _report(kind, made, function)
        return ExitCode.OK

    try:
        return process_exit.record(exit_code_of(execute))
    finally:
        ended.set()


def _report(kind: JobKind, job: Job, run: Callable[[Job], None]) -> None:
    """Run `job`, and let its last report say how it ended."""
    try:
        log.info("started", pid=os.getpid())
        # A server must answer at once, and a broker that is away holds the check up for ten seconds. A query of Spark
        # checks the topics that it reads.
        if not (kind.server or kind.is_spark):
            with contextlib.suppress(TransientError):
                check_access(job.settings, job.reporter.report().job)
        if kind.is_spark and kind.folder in READERS:
            by_their_pythons(job.settings, [job.name], lambda _: sys.orig_argv[1:], kind.folder)
        run(job)
    except StartAgain as error:
        log.warning("starts again", reason=str(error))
        job.reporter.close(JobState.WAITING, str(error))
        _start_again()
    except BaseException as error:
        cause = cause_of(error, job.settings.project)
        if isinstance(error, Unwritable) or (isinstance(error, OSError) and is_disk(error)):
            reason = f"the state folder {job.settings.state} cannot be written: {str(error)[:200]}"
            job.reporter.close(JobState.FAILED, reason)
        else:
            job.reporter.close(JobState.FAILED, str(cause), cause)
        raise
    job.reporter.close(JobState.STOPPED)
    log.info("stopped")


def _start_again() -> None:
    """Replace this program by itself: process id, labels, log and exit file stay, and locks are free for a moment."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # libraries of C may have opened files that a new program inherits
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _end_in_time(job: Job, ended: threading.Event) -> None:
    """End this process 13 seconds after it was asked to stop, whatever it is busy with: jobs resume after any end."""
    job.stop.wait()
    if not ended.wait(_STOP_SECONDS):
        log.warning("did not stop in time, ended by force", seconds=_STOP_SECONDS)
        job.kill()
        os._exit(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
