"""Reading many things of one place."""

import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tocsin.declare.model.errors import TransientError
from tocsin.platform.storage.stored_path import ObjectPath, read_each

STORE = ObjectPath(Mock(), "bucket/folder")


def test_a_store_is_asked_for_several_at_once_and_answers_in_order() -> None:
    together = threading.Barrier(4)

    def read(number: int) -> int:
        together.wait(timeout=30)
        return 10 * number

    assert read_each(read, range(8), STORE) == [0, 10, 20, 30, 40, 50, 60, 70]


def test_a_store_that_is_away_is_told() -> None:
    with pytest.raises(TransientError, match="did not answer"):
        read_each(Mock(side_effect=TransientError("it did not answer")), range(3), STORE)


def test_a_disk_is_read_one_by_one(tmp_path: Path) -> None:
    assert {*read_each(lambda _: threading.current_thread(), range(4), tmp_path)} == {threading.current_thread()}
