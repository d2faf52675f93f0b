"""What processes leave in a state folder: whole files, how they ended, and nothing that others may read."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tocsin.declare.model.errors import ConfigError
from tocsin.platform import private, process_exit, state_file
from tocsin.platform.state_file import stamps, write_whole
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch


def test_it_replaces_what_was_there_and_makes_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_whole(path, "first and longer")
    write_whole(path, "zweites ä")
    assert path.read_text(encoding="utf-8") == "zweites ä"
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("place", [os, Path], ids=["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(place, "fsync" if place is os else "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_on_the_disk_before_it_gets_its_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    path, really = tmp_path / "file", os.fsync

    def fsync(descriptor: int) -> None:
        what = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append(f"{what}, {'with' if path.exists() else 'without'} its name")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, "x")
    assert synced == ["file, without its name", "folder, with its name"]


def test_a_secret_is_never_readable_for_others_and_replaces_one_that_was(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        write_whole(path, "new", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_many_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [str(number) * 1000 for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_whole(path, text), texts))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_stamps_change_with_every_file_that_is_written_added_or_removed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    seen = [stamps([one, other])]
    for change in (lambda: one.write_text("22"), lambda: other.write_text("3"), one.unlink):
        change()
        seen.append(stamps([one, other]))
    assert len(set(seen)) == 4
    assert stamps([one, other]) == seen[-1]


# --- how a process ended ----------------------------------------------------------------------------------------------


def ask(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a process that is to tell its end in `file`."""
    for name, value in process_exit.variables(file).items():
        monkeypatch.setenv(name, value)


def test_what_is_told_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.exit"
    for code in (2, 0, -9, 255):
        ask(file, monkeypatch)
        assert process_exit.read(file) is None, "what an earlier process told is forgotten"
        taken = file.stat().st_size
        assert process_exit.record(code) == code
        assert file.stat().st_size == taken, "to tell needs no more room than was taken"
        assert process_exit.read(file) == code


def test_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOCSIN_EXIT", raising=False)
    assert process_exit.record(1) == 1
    assert process_exit.read(tmp_path / "job.exit") is None


def test_a_file_that_is_gone_hides_no_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_EXIT", str(tmp_path / "gone" / "job.exit"))
    assert process_exit.record(3) == 3


def test_one_that_ends_after_the_next_was_asked_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.exit"
    ask(file, monkeypatch)
    process_exit.variables(file)
    assert process_exit.record(0) == 0
    assert process_exit.read(file) is None


# --- whose a folder is ------------------------------------------------------------------------------------------------


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
