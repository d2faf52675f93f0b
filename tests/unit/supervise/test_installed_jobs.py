"""What tasks of Airflow do with the jobs of an installation, up to the point where a process would start."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import seconds_since_look
from tocsin.platform.process_exit import ExitCode
from tocsin.supervise.installed_jobs import InstalledJobs, Sender
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Condition, History, Past, memory_of, write_history
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Launch
from tocsin.supervise.switches import ask_switches, note_turn

DETECTOR = "detector:failed_logins"
LIGHT = ("engine__live-1", "ingest__logins", "indexer", "notifier", "web")
ALL = {DETECTOR, *(name.replace("__", ":") for name in LIGHT)}


@pytest.fixture
def jobs(tmp_path: Path) -> InstalledJobs:
    copy_project(tmp_path)
    return InstalledJobs(Settings(project=tmp_path, state=tmp_path / "state"))


def remember(jobs: InstalledJobs, **pasts: Past) -> None:
    """Let supervision remember so of each job; `__` stands for the colon in its name."""
    desired = desired_jobs(read_catalog(jobs.settings.project), jobs.settings)
    known = {name.replace("__", ":"): past for name, past in pasts.items()}
    history = History(jobs={job: replace(past, spec=desired[job].spec) for job, past in known.items()})
    write_history(memory_of(jobs.settings.state, "jobs"), history)


def test_what_should_run_and_does_not_is_a_difference_and_nothing_is_done_about_it(jobs: InstalledJobs) -> None:
    assert jobs.diff() >= ALL - {DETECTOR}, "heavy jobs start one after the other"
    assert jobs.runner.list() == []
    assert not memory_of(jobs.settings.state, "jobs").exists()


def test_a_detector_that_is_switched_off_is_no_difference(jobs: InstalledJobs) -> None:
    remember(jobs, **dict.fromkeys(LIGHT, Past(retry_at=time.time() + 50)))
    assert jobs.diff() == {DETECTOR}
    ask_switches(jobs.settings.state, ["detector__failed_logins"], lambda _: True)
    assert jobs.diff() == frozenset()
    note_turn(jobs.settings.state)
    assert jobs.diff() == {"switch"}


def test_a_new_file_is_seen_and_an_unchanged_one_is_not_read_again(
    jobs: InstalledJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.time() + 50
    remember(jobs, **dict.fromkeys((*LIGHT, "detector__failed_logins"), Past(retry_at=later)))
    assert jobs.diff() == frozenset()
    with monkeypatch.context() as patch:
        patch.setattr("tocsin.platform.code_versions.read_catalog", lambda _: pytest.fail("read again"))
        assert jobs.diff() == frozenset()
    folder = jobs.settings.project / "detectors"
    shutil.copy(folder / "failed_logins.py", folder / "second.py")
    os.utime(folder / "second.py")
    assert jobs.diff() == {"detector:second"}


@pytest.fixture
def started(jobs: InstalledJobs, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that are started, by name; none is in truth, and each look is taken beside jobs that run."""
    names: list[str] = []

    def start(_runner: LocalRunner, launch: Launch) -> int:
        names.append(launch.labels.job)
        return 1

    monkeypatch.setattr(LocalRunner, "start", start)
    monkeypatch.setattr(LocalRunner, "shares_files", lambda _: True)
    ask_switches(jobs.settings.state, ["detector__failed_logins"], lambda _: False)
    return names


def test_what_has_ended_is_started_again_before_the_next_look(jobs: InstalledJobs, started: list[str]) -> None:
    later = Past(retry_at=time.time() + 50)
    remember(jobs, detector__failed_logins=Past(expected=True), notifier=Past(expected=True), web=later)
    jobs.diff()
    assert jobs.restart_ended()
    assert {*started} == {"notifier", DETECTOR}, "not what has not run yet, and not within its back-off"
    assert seconds_since_look(jobs.settings.state) is None, "it shows no sign of life of the looks"


@pytest.mark.parametrize(
    "why", ["switched off", "a switch was turned", "no look for long", "changed", "misconfigured", "elsewhere"]
)
def test_all_else_is_left_to_the_next_look(
    jobs: InstalledJobs, started: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, now = jobs.settings.state, time.time()
    remember(jobs, detector__failed_logins=Past(expected=True))
    if why == "switched off":
        ask_switches(state, ["detector__failed_logins"], lambda _: True)
    elif why == "a switch was turned":
        note_turn(state)
    elif why == "no look for long":
        monkeypatch.setattr("tocsin.supervise.installed_jobs.time.time", lambda: now + 200)
    elif why == "changed":
        with (jobs.settings.project / "detectors" / "failed_logins.py").open("a") as file:
            file.write("CHANGED = True\n")
    elif why == "misconfigured":
        monkeypatch.setattr(LocalRunner, "exit_code", lambda *_: ExitCode.MISCONFIGURED)
    else:
        monkeypatch.setattr(LocalRunner, "shares_files", lambda _: False)
    before = jobs.supervisor.pasts()
    jobs.diff()
    assert not jobs.restart_ended()
    assert started == []
    assert jobs.supervisor.pasts() == before, "a look counts the end, and tells of it"


def test_incidents_of_the_last_day_are_to_be_shown(jobs: InstalledJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = Past(condition=Condition.CRASH_LOOP, reason="4 failures")
    remember(jobs, detector__failed_logins=crashed, notifier=Past(condition=Condition.NO_ROOM))
    shown = {one.job: (one.condition, one.reason) for one in jobs.watch()}
    assert shown == {DETECTOR: (Condition.CRASH_LOOP, "4 failures"), "notifier": (Condition.NO_ROOM, "")}
    now = time.time()
    monkeypatch.setattr("tocsin.supervise.installed_jobs.time.time", lambda: now + 86_401)
    assert jobs.watch() == []


A, B, NONE = frozenset({"a"}), frozenset({"b"}), frozenset[str]()


def times(sender: Sender, found: frozenset[str], first: float, last: float) -> list[float]:
    """When `found` is sent that is seen each second from `first` to `last`."""
    seconds = range(int(first), int(last) + 1)
    return [second for second in seconds if sender.sends(found, second)]


def test_a_new_difference_is_sent_at_once_and_again_ever_more_rarely() -> None:
    assert times(Sender(), A, 0, 300) == [0, 6, 18, 42, 90, 150, 210, 270]


def test_without_a_difference_nothing_is_sent() -> None:
    assert times(Sender(), NONE, 0, 100) == []


def test_another_difference_does_not_wait_so_long_but_never_less_than_three_seconds() -> None:
    sender = Sender()
    assert times(sender, A, 0, 1) == [0]
    assert times(sender, A | B, 1, 5) == [3]


def test_a_difference_that_was_gone_is_new() -> None:
    sender = Sender()
    assert times(sender, A, 0, 60) == [0, 6, 18, 42]
    assert not sender.sends(NONE, 61)
    assert times(sender, A, 62, 70) == [62, 68]
