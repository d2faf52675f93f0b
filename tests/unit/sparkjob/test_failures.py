"""Whether the state folder can be written, asked of the disk itself."""

import errno
import tempfile
from pathlib import Path
from typing import Never

import pytest

from tocsin.model.errors import TocsinError
from tocsin.sparkjob.failures import in_a_line, is_disk, refusal


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


ABORTED = """An error occurred while calling o569.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 1.0 failed 1 times, most recent:
[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///history/part-00003.parquet. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:856)
Caused by: java.lang.RuntimeException: part-00003.parquet is not a Parquet file"""


def test_a_failure_is_told_by_the_condition_that_spark_names() -> None:
    said = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///history/part-00003.parquet. "
    assert in_a_line(RuntimeError(ABORTED)) == f"{said}SQLSTATE: KD001"
    assert in_a_line(ValueError("out of range\nand more")) == "ValueError: out of range"
    assert in_a_line(ValueError()) == "ValueError: no message"
    assert in_a_line(TocsinError("day 3\nis gone")) == "day 3\nis gone", "ours is told whole"


def test_a_full_disk_is_known_whoever_met_it() -> None:
    assert is_disk(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk(RuntimeError(f"{ABORTED}\nCaused by: java.io.IOException: No space left on device"))
    assert not is_disk(OSError(errno.ENOENT, "No such file"))
    assert not is_disk(RuntimeError(ABORTED))
