from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.rig.waiting import patient
from tocsin.setup import install_stamp


def test_a_digest_tells_parts_apart(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text("ab")
    assert install_stamp.digest(file) == install_stamp.digest("ab")
    assert install_stamp.digest("ab", "c") != install_stamp.digest("a", "bc")


def test_a_folder_is_current_only_for_what_it_was_made_from(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    assert not install_stamp.is_current(folder, "one")
    with install_stamp.replacing(folder, "one") as partial:
        (partial / "a.jar").touch()
        assert not folder.exists()
    assert install_stamp.is_current(folder, "one")
    assert not install_stamp.is_current(folder, "two")
    assert (folder / "a.jar").exists()


def test_a_broken_off_replacement_leaves_the_old_folder_and_is_made_from_scratch_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    with install_stamp.replacing(folder, "one") as partial:
        (partial / "old").touch()
    with pytest.raises(KeyboardInterrupt), install_stamp.replacing(folder, "two") as partial:
        (partial / "half").touch()
        raise KeyboardInterrupt
    assert install_stamp.is_current(folder, "one")
    assert (folder / "old").exists()
    with install_stamp.replacing(folder, "two") as partial:
        assert list(partial.iterdir()) == []
    assert install_stamp.is_current(folder, "two")
    assert not (folder / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["jars"]


def test_a_second_set_up_waits_for_the_first(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with install_stamp.alone(tmp_path / ".tocsin"):
            order.append("second")

    with install_stamp.alone(tmp_path / ".tocsin"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(patient(10))
    assert order == ["first", "second"]
