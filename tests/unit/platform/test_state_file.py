import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tocsin.platform.state_file import stamps, write_whole


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
