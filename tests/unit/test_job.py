"""What every job and batch is: its lock, its last report, its exit code."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from tocsin import job as harness
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_kinds import BATCHES, KINDS
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import load_settings
from tocsin.job import Batch, Job, main
from tocsin.platform import logs
from tocsin.platform.failures import Unwritable
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka import reporter
from tocsin.platform.lock import try_lead


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(logs, "configure", lambda _job: None)  # for the whole process, and all tests after this one
    monkeypatch.setattr(harness, "check_access", lambda *given: None)
    monkeypatch.setattr(reporter, "_CLOSE_SECONDS", 0.1)  # Kafka is away
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    umask = os.umask(0o022)
    yield tmp_path / "state"
    os.umask(umask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def ended(state: Path) -> tuple[JobState, str]:
    beat = read_beat(state, "notifier")
    assert beat is not None
    return beat.report.state, beat.report.reason


def test_a_job_leads_until_it_is_asked_to_stop_and_reports_that(state: Path) -> None:
    def run(job: Job) -> None:
        assert job.reporter.report().state is JobState.STARTING
        with pytest.raises(Exception, match="lock"):
            try_lead(job.settings, job.settings.checkpoint("notifier") / "lock")
        os.kill(os.getpid(), signal.SIGTERM)
        assert job.stop.wait(10)

    assert main(["notifier", "--label", "job=notifier"], run=run) == 0
    assert ended(state) == (JobState.STOPPED, "")


FAULT = ConfigError.one("tocsin.toml", "is wrong", key="smtp.host")


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (FAULT, 2, "tocsin.toml: smtp.host: is wrong"),
        (TransientError("the alerts DB is away"), 1, "the alerts DB is away"),
        (RuntimeError("no"), 1, "RuntimeError: no"),
        (OSError(errno.ENOSPC, "No space left on device"), 4, "cannot be written: [Errno 28] No space left on device"),
        (Unwritable("the checkpoint"), 4, "cannot be written: the checkpoint"),
        (OSError(errno.EADDRINUSE, "Address already in use"), 1, "[Errno 98] Address already in use"),
    ],
)
def test_a_job_that_fails_says_how_and_reports_why(state: Path, error: Exception, code: int, reason: str) -> None:
    def run(job: Job) -> None:
        raise error

    assert main(["notifier"], run=run) == code
    assert ended(state)[0] is JobState.FAILED
    assert ended(state)[1].endswith(reason)


def test_another_copy_is_refused() -> None:
    settings = load_settings()
    with try_lead(settings, settings.checkpoint("notifier") / "lock"):
        assert main(["notifier"], run=lambda job: pytest.fail("it ran")) == 3


def test_a_job_that_does_not_stop_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, killed = threading.Event(), threading.Event()
    monkeypatch.setattr(harness, "_STOP_SECONDS", 0.0)
    monkeypatch.setattr(os, "_exit", lambda code: gone.set())

    def run(job: Job) -> None:
        job.kill = killed.set
        job.stop.set()
        assert gone.wait(10)

    main(["notifier"], run=run)
    assert killed.is_set()


def call(monkeypatch: pytest.MonkeyPatch, words: list[str], function: Callable[[Any], int]) -> int:
    monkeypatch.setattr(harness, "resolve_name", lambda _place: function)
    return main(words)


def test_a_batch_gets_what_its_arguments_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Batch] = []

    def run(batch: Batch) -> int:
        seen.append(batch)
        return 20

    words = ["backfill", "a", "b", "--day", "2026-11-20", "--run-id", "night"]
    assert call(monkeypatch, words, run) == 20
    assert call(monkeypatch, ["rebuild", "v", "--missing", "leave-out"], run) == 20
    one, other = seen
    assert (one.names, one.days, one.run_id, one.leave_out) == (("a", "b"), (date(2026, 11, 20),), "night", False)
    assert (other.name, other.days, other.leave_out) == ("v", (), True)


@pytest.mark.parametrize(
    "words", [[], ["nothing"], ["ingest"], ["indexer", "x"], ["seal", "a", "b"], ["refresh", "a", "--day=2026-11-20"]]
)
def test_what_a_kind_does_not_take_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


@pytest.mark.parametrize("kind", [*KINDS.values(), *BATCHES.values()], ids=lambda kind: str(kind.word))
def test_the_function_of_each_kind_is_there(kind: Any) -> None:
    assert callable(resolve_name(kind.run))
