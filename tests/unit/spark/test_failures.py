"""Whether the state folder can be written, asked of the disk itself."""

import errno
import tempfile
from pathlib import Path
from typing import Never

import pytest

from tocsin.spark.failures import refusal


def test_a_folder_with_room_refuses_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    assert refusal(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")]
)
def test_a_folder_that_cannot_be_written_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    def refuse(**_: object) -> Never:
        raise OSError(number, told)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert refusal(tmp_path) == f"{tmp_path}: {told}"


def test_a_fault_that_is_not_the_disk_is_no_refusal(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent") == ""
