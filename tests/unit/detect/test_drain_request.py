"""Drains as files: what an operator asks, what a job answers, and what happens when both speak at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.detect.drain_request import (
    Drains,
    ask_drain,
    asked_at,
    end_drain,
    end_other_drains,
    finish_drain,
    read_drains,
)

A, B = "detector:a", "detector:b"


def ask(state: Path, job: str) -> float:
    """Ask `job` to drain; when that was."""
    ask_drain(state, job)
    asked = asked_at(state, job)
    assert asked is not None
    return asked


def test_a_drain_is_asked_for_finished_and_ended(tmp_path: Path) -> None:
    assert read_drains(tmp_path) == Drains()
    asked = ask(tmp_path, A)
    assert read_drains(tmp_path) == Drains(asked={A: asked})
    finish_drain(tmp_path, A, asked)
    assert asked_at(tmp_path, A) is None
    assert read_drains(tmp_path) == Drains(drained={A: asked})
    end_drain(tmp_path, A)
    assert read_drains(tmp_path) == Drains()
    end_drain(tmp_path, A)


def test_a_job_that_gets_there_when_its_drain_is_ended_stays_free(tmp_path: Path) -> None:
    asked = ask(tmp_path, A)
    end_drain(tmp_path, A)
    assert not finish_drain(tmp_path, A, asked)
    assert read_drains(tmp_path) == Drains()


def test_who_has_drained_can_be_asked_again_and_finishes_that_one(tmp_path: Path) -> None:
    first = ask(tmp_path, A)
    finish_drain(tmp_path, A, first)
    second = ask(tmp_path, A)
    assert not finish_drain(tmp_path, A, first)
    assert read_drains(tmp_path) == Drains(asked={A: second}), "what has been read for the first is not all"
    assert finish_drain(tmp_path, A, second)
    assert read_drains(tmp_path) == Drains(drained={A: second})


def test_who_has_drained_does_not_run_until_the_drain_is_ended(tmp_path: Path) -> None:
    jobs = {A: "a", B: "b"}
    asked = ask(tmp_path, A)
    assert read_drains(tmp_path).applied(jobs) == jobs
    finish_drain(tmp_path, A, asked)
    assert read_drains(tmp_path).applied(jobs) == {B: "b"}
    end_drain(tmp_path, A)
    assert read_drains(tmp_path).applied(jobs) == jobs


def test_drains_of_others_are_ended(tmp_path: Path) -> None:
    ask_drain(tmp_path, A)
    finish_drain(tmp_path, B, ask(tmp_path, B))
    end_other_drains(tmp_path, {A})
    assert (list(read_drains(tmp_path).asked), read_drains(tmp_path).drained) == ([A], {})
    end_other_drains(tmp_path, ())
    assert read_drains(tmp_path) == Drains()


def test_drains_touch_no_other_job_and_a_broken_file_is_none(tmp_path: Path) -> None:
    ask_drain(tmp_path, A)
    finish_drain(tmp_path, B, ask(tmp_path, B))
    (file,) = (tmp_path / "drains").glob("*.asked.json")
    file.write_text("{")
    assert list(read_drains(tmp_path).drained) == [B]
    assert asked_at(tmp_path, A) is None
    end_drain(tmp_path, A)
    assert not file.exists(), "it does not stay behind"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "drains").write_text("no folder")
    with pytest.raises(OSError, match="drains"):
        ask_drain(tmp_path, A)
    assert read_drains(tmp_path) == Drains()
