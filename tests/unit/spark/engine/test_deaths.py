"""What an engine remembers of its deaths, and which jobs go on alone after them."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tocsin.platform import state_file
from tocsin.platform.heartbeat import boot_id
from tocsin.spark.engine import deaths
from tocsin.spark.engine.deaths import FOLDER, Death, EngineMemory, Life, isolation

GONE = 2**22 + 1
"""No process has this number: Linux gives none above four millions."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    return tmp_path / FOLDER


def die(folder: Path, *jobs: str, name: str = "live-1", blamed: str = "") -> None:
    """Live as an engine with `jobs`, which attach in this order, and leave what a kill leaves."""
    memory = EngineMemory(folder, name)
    for job in jobs:
        memory.attached(job, "v1")
    if blamed:
        memory.blame(blamed, "its tasks do not end")
    (folder / f"{name}.{os.getpid()}.json").rename(folder / f"{name}.{GONE}.json")


def isolated(folder: Path, *jobs: str) -> list[str]:
    return [job for job in jobs if isolation(folder.parent, job, "v1")]


@pytest.mark.parametrize(
    ("lives", "alone"),
    [
        pytest.param([["a", "b"]], [], id="one death is no reason"),
        pytest.param([["a", "b"], ["c", "b"]], ["b"], id="the one that both had"),
        pytest.param([["a", "b", "c", "d"], ["a", "b", "c", "d"]], ["c", "d"], id="half, those that came last"),
        pytest.param([["a", "b", "c"], ["a", "b", "c"], ["a"]], ["a", "b", "c"], id="then half of the rest"),
        pytest.param([["a"], ["b"]], [], id="none was in both"),
        pytest.param([[], []], [], id="without jobs"),
    ],
)
def test_jobs_go_on_alone_after_deaths(folder: Path, lives: list[list[str]], alone: list[str]) -> None:
    for jobs in lives:
        die(folder, *jobs)
    EngineMemory(folder, "live-1")
    assert isolated(folder, "a", "b", "c", "d") == alone


def test_the_job_that_an_engine_blames_is_isolated_at_once(folder: Path) -> None:
    die(folder, "a", "b", blamed="a")
    EngineMemory(folder, "live-1")
    assert isolated(folder, "a", "b") == ["a"]
    assert isolation(folder.parent, "a", "v1") == "left engine:live-1: its tasks do not end"


def test_isolation_ends_with_another_version_and_after_a_day(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die(folder, "a", blamed="a")
    EngineMemory(folder, "live-1")
    assert isolation(folder.parent, "a", "v2") == ""
    monkeypatch.setattr(deaths, "_ALONE", timedelta(0))
    assert isolated(folder, "a") == []


def test_no_death_counts_that_was_none_or_is_long_ago(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = EngineMemory(folder, "live-1")
    asked.attached("a", "v1")
    asked.ended()
    other = Life(boot=f"not {boot_id()}", jobs={})
    state_file.write(folder / f"live-1.{GONE}.json", Life, other)  # the machine went down with it
    runs = Life(boot=boot_id(), jobs={})
    state_file.write(folder / f"live-1.{os.getppid()}.json", Life, runs)  # another process of it, which lives
    EngineMemory(folder, "live-1").ended()
    assert state_file.load(folder / "live-1.json", list[Death]) == []
    die(folder, "a")
    monkeypatch.setattr(deaths, "_TOGETHER", timedelta(0))
    EngineMemory(folder, "live-1").ended()
    die(folder, "a")
    EngineMemory(folder, "live-1")
    assert isolated(folder, "a") == []


def test_engines_are_judged_each_by_its_own_deaths(folder: Path) -> None:
    die(folder, "a", name="live-1")
    die(folder, "a", name="shadow-1")
    EngineMemory(folder, "live-1").ended()
    EngineMemory(folder, "shadow-1").ended()
    assert isolated(folder, "a") == []
    found = state_file.load(folder / "live-1.json", list[Death])
    assert [sorted(death.jobs) for death in found] == [["a"]]
    assert datetime.now(UTC) - found[0].at < timedelta(minutes=1)
