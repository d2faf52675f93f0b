"""CI runs the long tests when a change touches what they prove, and never beyond its own limit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rig.long_tests import LEAST, LIMIT, SPARE, changed_files, seconds_for

EARLY = 1_600.0


@pytest.mark.parametrize(
    ("changed", "runs"),
    [
        (["src/tocsin/alerts/store/database.py", "README.md"], True),
        (["tests/faults/kills.py"], True),
        (["locks/python.txt"], True),
        (["docs/cli.md", "README.md", "tests/unit/alerts/test_intake.py"], False),
        ([], False),
        (None, True),
    ],
)
def test_they_run_if_what_they_prove_has_changed_or_may_have(changed: list[str] | None, runs: bool) -> None:
    assert (seconds_for(changed, EARLY) > 0) is runs


def test_they_have_what_is_left_and_are_not_begun_without_enough() -> None:
    assert seconds_for(None, EARLY) == LIMIT - SPARE - EARLY
    latest = LIMIT - SPARE - LEAST
    assert seconds_for(None, latest) == LEAST
    assert seconds_for(None, latest + 1) == 0


def git(*words: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


def commit(name: str) -> None:
    Path(name).write_text("")
    git("add", name)
    git("commit", "--message", name)


def test_what_has_changed_is_told_by_the_last_tag_or_the_main_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert changed_files() is None, "no repository"
    git("init", "--initial-branch=main")
    commit("first")
    commit("second")
    assert changed_files() is None, "main itself, and no release"
    git("switch", "--create", "topic")
    commit("third")
    assert changed_files() == ["third"]
    git("tag", "v1", "main~1")
    assert changed_files() == ["second", "third"]
    git("tag", "v2")
    assert changed_files() == ["second", "third"], "the release itself is compared with the one before"
