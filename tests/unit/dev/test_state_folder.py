from collections import namedtuple
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev import state_folder
from tocsin.dev.state_folder import Running, announce, read_running, withdraw
from tocsin.platform.lock import try_lead
from tocsin.platform.private import MARKER


def test_a_new_folder_is_made_and_marked(tmp_path: Path) -> None:
    state_folder.prepare(tmp_path / "a" / "state")
    assert (tmp_path / "a" / "state" / MARKER).exists()
    state_folder.prepare(tmp_path / "a" / "state")


def test_what_a_batch_left_without_the_stack_is_a_state_folder(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    with try_lead(settings := Settings(state=state), settings.checkpoint("landing:logins") / "lock"):
        (state / "history" / "landing").mkdir(parents=True)
        (state / "whatever comes").touch()
    assert (state / MARKER).exists()
    state_folder.prepare(state)
    state_folder.wipe(state)


@pytest.mark.parametrize("name", ["checkpoints", "alerts.db-wal", "history", "quality", "parity", "job_servers"])
def test_what_jobs_or_an_earlier_release_left_without_a_mark_may_be_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    state_folder.prepare(tmp_path)


def test_a_batch_marks_no_folder_that_holds_other_things(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with try_lead(settings := Settings(state=tmp_path), settings.checkpoint("landing:logins") / "lock"):
        assert not (tmp_path / MARKER).exists()


def test_a_folder_with_other_things_is_neither_used_nor_wiped(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is not empty and not a state folder"):
        state_folder.prepare(tmp_path)
    with pytest.raises(ConfigError, match="not marked"):
        state_folder.wipe(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_wiping_takes_everything_but_the_lock_and_follows_no_link(tmp_path: Path) -> None:
    state, outside = tmp_path / "state", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    state_folder.prepare(state)
    (state / "kafka" / "data").mkdir(parents=True)
    (state / "alerts.db").touch()
    (state / "link").symlink_to(outside)
    (state / state_folder.LOCK).touch()
    state_folder.wipe(state)
    assert [path.name for path in state.iterdir()] == [state_folder.LOCK]
    assert (outside / "kept").exists()


def test_a_file_in_its_place_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(ConfigError, match="cannot be used as state folder: File exists"):
        state_folder.prepare(tmp_path / "state")


def test_a_disk_that_cannot_be_written_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        state_folder.prepare(tmp_path)


def test_a_nearly_full_disk_is_told_before_kafka_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 10**9, 5 * 2**20))
    with pytest.raises(ConfigError, match="the disk has 5 MB left; at least 500 MB are needed"):
        state_folder.prepare(tmp_path)


def test_others_read_where_a_stack_is_and_nothing_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    before = load_settings(tmp_path)
    sinks = {"redis": tmp_path / 'a "file"'}
    running = Running(7, 29092, 2525, 2430, 2431, 2435, "http://127.0.0.1:2080", sinks=sinks)
    announce(tmp_path, running)
    settings = load_settings(tmp_path)
    assert settings.kafka.bootstrap_servers == "127.0.0.1:29092"
    assert (settings.smtp.host, settings.smtp.port) == ("127.0.0.1", 2525)
    assert (settings.drain.port, settings.web.port, settings.metrics.port) == (2430, 2431, 2435)
    assert settings.views.model_dump() == {"redis_file": sinks["redis"]}
    assert read_running(tmp_path) == running
    withdraw(tmp_path)
    withdraw(tmp_path)
    assert load_settings(tmp_path) == before
    assert read_running(tmp_path) is None


def test_a_half_written_file_is_no_stack(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"pid": 7')
    assert read_running(tmp_path) is None
