"""What tasks of Airflow do with the jobs of an installation, up to the point where a process would start."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tocsin.airflow.jobs import Jobs
from tocsin.catalog import read_catalog
from tocsin.drains import Drains, asked_at, finish_drain, read_drains
from tocsin.heartbeat import beat
from tocsin.metrics import JobReport, JobState
from tocsin.settings import Settings
from tocsin.supervision.desired import desired_jobs
from tocsin.supervision.history import write_history
from tocsin.supervision.model import Condition, History, Past
from tocsin.supervision.news import note_told
from tocsin.supervision.standing import memory_of
from tocsin.supervision.switches import ask_switches, note_turn

ROOT = Path(__file__).resolve().parents[3]
DETECTOR = "detector:failed_logins"
ALL = {DETECTOR, "ingest:logins", "indexer", "notifier"}


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    for folder in ("sources", "detectors"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return Jobs(Settings(project=tmp_path, state=tmp_path / "state"))


def remember(jobs: Jobs, **pasts: Past) -> None:
    """Let supervision remember so of each job; `__` stands for the colon in its name."""
    desired = desired_jobs(read_catalog(jobs.settings.project), jobs.settings)
    known = {name.replace("__", ":"): past for name, past in pasts.items()}
    history = History(jobs={job: replace(past, spec=desired[job].spec) for job, past in known.items()})
    write_history(memory_of(jobs.settings.state, "jobs"), history)


def test_what_should_run_and_does_not_is_drift_and_nothing_is_done_about_it(jobs: Jobs) -> None:
    assert jobs.drift() >= ALL - {DETECTOR}, "heavy jobs start one after the other"
    assert jobs.runner.list() == []
    assert not memory_of(jobs.settings.state, "jobs").exists()


def test_a_detector_that_is_switched_off_is_no_drift(jobs: Jobs) -> None:
    later = time.time() + 50
    remember(jobs, indexer=Past(retry_at=later), notifier=Past(retry_at=later), ingest__logins=Past(retry_at=later))
    assert jobs.drift() == {DETECTOR}
    ask_switches(jobs.settings.state, ["failed_logins"], lambda _: True)
    assert jobs.drift() == frozenset()
    note_turn(jobs.settings.state)
    assert jobs.drift() == {"switch"}


def test_a_detector_that_has_drained_is_no_drift_until_it_is_restarted(jobs: Jobs) -> None:
    later, state = time.time() + 50, jobs.settings.state
    remember(jobs, indexer=Past(retry_at=later), notifier=Past(retry_at=later), ingest__logins=Past(retry_at=later))
    jobs.drain(DETECTOR)
    assert jobs.drift() == {DETECTOR}, "it is started, if it must be, to read what there is"
    finish_drain(state, DETECTOR, asked_at(state, DETECTOR) or 0.0)
    assert jobs.drift() == frozenset()
    assert not jobs.restart(DETECTOR), "there was no process"
    assert read_drains(state) == Drains()
    assert jobs.drift() == {DETECTOR}


def test_a_look_ends_the_drains_of_who_is_switched_off_and_of_nobody_else(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_supervisor", Idle())
    jobs.drain(DETECTOR)
    jobs.look(lambda _: False)
    assert list(read_drains(jobs.settings.state).asked) == [DETECTOR]
    jobs.look(lambda _: True)
    assert read_drains(jobs.settings.state) == Drains()


class Idle:
    """A supervisor that does nothing."""

    def tick(self, desired: object) -> None:
        """Nothing."""

    def under_way(self, desired: object, seconds: float) -> bool:
        """Never."""
        return False


def test_a_new_file_is_seen_and_an_unchanged_one_is_not_read_again(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time() + 50
    waiting = {name: Past(retry_at=later) for name in ("indexer", "notifier", "ingest__logins")}
    remember(jobs, **waiting, detector__failed_logins=Past(retry_at=later))
    assert jobs.drift() == frozenset()
    with monkeypatch.context() as patch:
        patch.setattr("tocsin.airflow.jobs.catalog_in_force", lambda _: pytest.fail("read again"))
        assert jobs.drift() == frozenset()
    folder = jobs.settings.project / "detectors"
    shutil.copy(folder / "failed_logins.py", folder / "second.py")
    os.utime(folder / "second.py")
    assert jobs.drift() == {"detector:second"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr("tocsin.airflow.jobs.time.time", lambda: seconds)

    return set_to


def test_news_are_told_again_each_minute_until_they_have_left(jobs: Jobs, clock: Callable[[float], None]) -> None:
    remember(jobs, detector__failed_logins=Past(condition=Condition.CRASH_LOOP, reason="4 failures"))
    log = jobs.settings.log(DETECTOR)
    log.parent.mkdir(parents=True)
    log.write_text("first\n" + "x" * 1000 + "\nlast words\n")
    clock(1000.0)
    (message,) = jobs.untold(lambda dag, run: False)
    assert message["trigger_dag_id"] == "detector__failed_logins"
    event = message["conf"]["event"]
    assert (event["job"], event["condition"], event["reason"]) == (DETECTOR, "crash loop", "4 failures")
    assert event["advice"].startswith("It goes on being tried.")
    assert event["commands"] == []
    assert [len(event["lines"][1]), event["lines"][-1]] == [400, "last words"]
    clock(1059.0)
    assert jobs.untold(lambda dag, run: False) == []
    clock(1060.0)
    run_of = ("detector__failed_logins", message["trigger_run_id"])
    assert jobs.untold(lambda dag, run: (dag, run) == run_of) == [], "it is on its way"
    assert jobs.untold(lambda dag, run: False) == [message], "the mail did not leave: the same run again"
    note_told(jobs.settings.state, message["trigger_run_id"])
    clock(2000.0)
    assert jobs.untold(lambda dag, run: False) == []


def test_notes_on_news_that_are_over_are_removed(jobs: Jobs, clock: Callable[[float], None]) -> None:
    for moment in (1000.0, 2000.0):
        remember(jobs, notifier=Past(condition=Condition.NO_ROOM))
        clock(moment)
        (message,) = jobs.untold(lambda dag, run: False)
        note_told(jobs.settings.state, message["trigger_run_id"])
        assert len(list((jobs.settings.state / "supervision" / "told").iterdir())) == 1
        assert jobs.untold(lambda dag, run: False) == []
        remember(jobs, notifier=Past())
        assert jobs.untold(lambda dag, run: False) == []
    assert list((jobs.settings.state / "supervision" / "told").iterdir()) == []


def test_a_source_of_which_much_goes_to_quarantine_is_told_with_what_to_do(
    jobs: Jobs, clock: Callable[[float], None]
) -> None:
    def says(ratio: float) -> None:
        report = JobReport(
            job="ingest:logins", at=datetime.now(UTC), state=JobState.RUNNING, counts={"bad_ratio": ratio}
        )
        beat(jobs.settings.state, report)

    remember(jobs, ingest__logins=Past())
    says(0.05)
    assert jobs.untold(lambda dag, run: False) == [], "so much is no news"
    says(0.31)
    clock(time.time() + 60)
    assert jobs.untold(lambda dag, run: False) == [], "a job that is silent says nothing of now"
    clock(time.time() - 60)
    (message,) = jobs.untold(lambda dag, run: False)
    assert message["trigger_dag_id"] == "platform"
    event = message["conf"]["event"]
    assert (event["job"], event["condition"]) == ("ingest:logins", "much goes to quarantine")
    assert event["reason"] == "31.0% of the latest records went to quarantine"
    assert event["commands"] == [
        "tocsin quarantine list --source logins", "tocsin quarantine replay --all --source logins",
    ]  # fmt: skip


def test_two_jobs_with_the_same_trouble_at_once_are_two_pieces_of_news(jobs: Jobs) -> None:
    """They share a DAG, in which a run with the same id is the same run."""
    remember(jobs, notifier=Past(condition=Condition.NO_ROOM), indexer=Past(condition=Condition.NO_ROOM))
    assert len({one["trigger_run_id"] for one in jobs.untold(lambda dag, run: False)}) == 2


def test_news_of_other_jobs_go_to_the_dag_that_they_share(jobs: Jobs) -> None:
    remember(jobs, notifier=Past(condition=Condition.NO_ROOM), ingest__logins=Past(condition=Condition.MISCONFIGURED))
    told = {one["conf"]["event"]["job"]: one for one in jobs.untold(lambda dag, run: False)}
    assert {one["trigger_dag_id"] for one in told.values()} == {"platform"}
    assert set(told) == {"notifier", "ingest:logins"}
