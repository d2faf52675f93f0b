"""`tocsin backfill` over a real history and ledger: plan, question, and what is told. What Spark would do is given."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

from tests.rig.command_line import invoke
from tests.rig.samples.backfills import SPEC, attempt, finding, published
from tests.rig.samples.history import DAY
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import landed, sealed
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import backfill_job
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, End, Made
from tocsin.history.backfill.backfill_status import BackfillState
from tocsin.history.backfill.spark.backfill_run import BackfillOutcome
from tocsin.spark.batch_session import running_batch

MADE = Made(version=SPEC.version, inputs={DAY: "v1"})


class Runs:
    """Stands in for the run: remembers what it was asked, and says what it is given."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], tuple[date, ...]]] = []
        self.outcome = BackfillOutcome(published={("failed_logins", DAY): published(MADE)})

    def __call__(self, _: Settings, names: Sequence[str], days: Sequence[date]) -> BackfillOutcome:
        self.asked.append((list(names), tuple(days)))
        return self.outcome


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    copy_project(tmp_path)
    source = tmp_path / "sources" / "logins.toml"
    source.write_text("history_days = 3650\n" + source.read_text())
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    made = Settings(state=tmp_path / "state", project=tmp_path)
    landed(made, "r1", 6000)
    sealed(made, "v1", 6000)
    return made


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr("tocsin.history.backfill.spark.backfill_run.backfill", made)
    return made


def run(*words: str, **options: Any) -> Result:
    return invoke(["backfill", "--detector", "failed_logins", *words], **options)


def row(done: Result) -> list[str]:
    """The words of the detector's row in the plan."""
    return next(line for line in done.stdout.splitlines() if line.startswith("failed_logins ")).split()


def test_the_plan_says_which_days_why_and_what_they_take(settings: Settings, runs: Runs) -> None:
    done = run("--plan")
    assert done.exit_code == 0, done.output
    assert row(done) == ["failed_logins", "1", str(DAY), "to", str(DAY), "6,000", "1", "1", "day", "never", "run"]
    assert done.stdout.splitlines()[-1] == "expected: 21 CPU-seconds, 10 s on 2 cores"
    assert runs.asked == []


def test_nothing_is_run_before_it_is_confirmed(settings: Settings, runs: Runs) -> None:
    done = run(input="n\n")
    assert (done.exit_code, runs.asked) == (1, [])
    assert "expected: " in done.stdout
    assert "Run it? [y/N]: n" in done.output
    done = run(input="y\n")
    assert (done.exit_code, runs.asked) == (0, [(["failed_logins"], (DAY,))])
    assert f"failed_logins {DAY}: 0 findings, verdict pass" in done.stdout
    assert "Run it?" not in run("--yes").output
    assert len(runs.asked) == 2


def test_a_day_that_is_done_is_run_only_again(settings: Settings, runs: Runs) -> None:
    Backfills(settings, "failed_logins").publish(DAY, [finding("u")], published(MADE))
    done = run()
    assert (done.exit_code, runs.asked) == (0, [])
    assert row(done)[-3:] == ["nothing", "to", "do"]
    assert "Run it?" not in done.output
    assert "expected" not in done.output
    done = run("--again", "--yes")
    assert (done.exit_code, runs.asked) == (0, [(["failed_logins"], (DAY,))])
    assert row(done)[-3:] == ["1", "day", "done"]


def test_a_held_day_says_so_and_waits(settings: Settings, runs: Runs) -> None:
    Backfills(settings, "failed_logins").note(DAY, attempt(End.HELD, MADE))
    done = run("--yes")
    assert (done.exit_code, runs.asked) == (0, [])
    assert f"failed_logins {DAY}: held: so it is" in done.stderr
    assert run("--again", "--yes").exit_code == 0
    assert len(runs.asked) == 1


def test_days_that_are_not_there_are_told_together(settings: Settings, runs: Runs) -> None:
    first, last = DAY - timedelta(days=3), DAY
    done = run("--from", str(first), "--to", str(last), "--plan")
    assert f"failed_logins {first} to {DAY - timedelta(days=1)} (3 days): blocked: is not published" in done.stderr
    assert row(done)[1] == "1"
    done = run("--from", str(last), "--to", str(first))
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"--from: {last} is after {first}"


def test_a_day_that_was_asked_for_and_cannot_be_run_says_why_and_is_no_success(settings: Settings, runs: Runs) -> None:
    today = str(datetime.now(UTC).date())
    for words in (("--from", today, "--to", today), ("--from", today), ("--to", today, "--from", today, "--json")):
        done = run(*words, "--yes")
        assert "is not published: it is not over yet; then `tocsin history seal" in done.output, words
        assert (done.exit_code, runs.asked) == (0 if "--json" in words else 1, [])
    assert run("--from", today, "--plan").exit_code == 0
    done = run("--from", str(DAY), "--to", str(DAY + timedelta(days=1)), "--yes")
    assert (done.exit_code, runs.asked) == (1, [(["failed_logins"], (DAY,))]), "the other day is run"
    assert run("--yes").exit_code == 0, "a day that nobody asked for is no failure"


def test_what_is_not_published_is_told_once_for_a_reason_and_is_no_success(settings: Settings, runs: Runs) -> None:
    days = [DAY - timedelta(days=back) for back in range(3)]
    runs.outcome = BackfillOutcome(failed={("failed_logins", day): "the disk is away" for day in days[:2]})
    runs.outcome.held["failed_logins", days[2]] = "too many"
    done = run("--yes")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"failed_logins {days[2]}: too many",
        f"failed_logins {days[1]} to {days[0]} (2 days): the disk is away",
    ]


def test_detectors_with_different_days_share_a_session(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[str]()

    @contextmanager
    def running(_: Settings, job: str) -> Iterator[str]:
        started.append(job)
        yield "session"

    def backfill(_: Settings, names: Sequence[str], days: Sequence[date]) -> BackfillOutcome:
        with running_batch(settings, backfill_job(names[0])):
            return BackfillOutcome(published={(names[0], day): published(MADE) for day in days})

    days = [
        SimpleNamespace(state=BackfillState.DUE, detector=name, day=day, why="", events=1, expected_cpu_seconds=1.0)
        for name, day in [("failed_logins", DAY), ("many_users", DAY), ("many_users", DAY + timedelta(days=1))]
    ]
    monkeypatch.setattr("tocsin.spark.batch_session._running", running)
    monkeypatch.setattr("tocsin.history.backfill.backfill_status.list_days", lambda *_: days)
    monkeypatch.setattr("tocsin.history.backfill.spark.backfill_run.backfill", backfill)
    done = run("--yes")
    assert (done.exit_code, done.stdout.count("verdict pass"), started) == (0, 3, ["backfill:failed_logins"])
