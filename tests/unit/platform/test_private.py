"""A state folder is its user's alone, and says in which form its files are written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tocsin.declare.model.errors import ConfigError
from tocsin.platform import private, state_file
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_there_is_tightened_and_what_comes_is_private(tmp_path: Path) -> None:
    state = tmp_path / "state"
    databases = [state / name for name in ("alerts.db", "alerts.db-wal", "airflow/airflow.db")]
    (state / "airflow").mkdir(parents=True)
    for database in databases:
        database.touch()
    assert {mode(path) for path in databases} == {0o644}
    private.protect(state)
    new = state / "heartbeats" / "indexer.json"
    new.parent.mkdir()
    new.touch()
    assert {mode(path) for path in (*databases, new)} == {0o600}
    assert {mode(path) for path in (state, new.parent)} == {0o700}


def test_a_job_writes_for_its_user_alone_whoever_starts_it(tmp_path: Path) -> None:
    runner = LocalRunner("x", lambda job: tmp_path / f"{job}.log")
    file = tmp_path / "made"
    launch = Launch(
        labels=Labels("x", "indexer", "abc"),
        command=("touch", str(file)),
        environment={"PATH": os.environ["PATH"]},
        directory=tmp_path,
        log=tmp_path / "indexer.log",
    )
    runner.start(launch)
    await_that(file.exists, 10)
    assert mode(file) == 0o600
    await_that(lambda: not runner.list(), 10)


def test_the_form_is_noted_once_and_raised_by_a_later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / state_file.FORM_FILE
    private.protect(tmp_path)
    assert json.loads(note.read_text()) == {"form": state_file.FORM, "tocsin": version("tocsin")}
    note.write_text(f'{{"form": {state_file.FORM}, "tocsin": "0.0.9"}}')
    private.protect(tmp_path)
    assert "0.0.9" in note.read_text(), "nothing has changed since"
    monkeypatch.setattr(state_file, "FORM", later := state_file.FORM + 1)
    private.protect(tmp_path)
    assert json.loads(note.read_text()) == {"form": later, "tocsin": version("tocsin")}


def test_nothing_begins_on_the_folder_of_a_later_release(tmp_path: Path) -> None:
    note = tmp_path / state_file.FORM_FILE
    note.write_text('{"form": 7, "tocsin": "9.9.0", "further": []}')
    said = f"{note}: was written by Tocsin 9.9.0 in form 7; this Tocsin, {version('tocsin')}, reads up to form"
    with pytest.raises(ConfigError, match=f"{said} .*start the later one again, or restore a backup"):
        private.protect(tmp_path)
    assert "9.9.0" in note.read_text()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    private.protect(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_nothing_begins_where_an_earlier_release_has_rolled_a_detector_back(tmp_path: Path) -> None:
    pins = tmp_path / "supervision" / "pins.json"
    pins.parent.mkdir()
    pins.write_text('{"detector:failed_logins": {"version": "0123"}}')
    with pytest.raises(ConfigError, match=r"pins\.json: .* runs files as they are: copy .*; then delete this"):
        private.protect(tmp_path)
    pins.write_text("{}")
    private.protect(tmp_path)
