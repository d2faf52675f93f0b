"""Why a query ended: the words of Spark, and the disk itself, which is asked."""

import errno
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.model.job_report import FailureCause
from tocsin.job import exit_code_of
from tocsin.platform import logs
from tocsin.platform.failures import (
    FailsOnAll,
    cause,
    cause_of,
    first_line,
    in_a_line,
    is_disk,
    is_store,
    missing_in_workers,
    refusal,
    root_cause,
    store_failure,
)
from tocsin.platform.process_exit import ExitCode


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
    assert in_a_line(RuntimeError(f"{WORKER}KeyError: 'x'")) == "KeyError: 'x'"
    assert in_a_line(TocsinError("day 3\nis gone")) == "day 3\nis gone", "ours is told whole"


HEAP = """An error occurred while calling o12357.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: java.lang.OutOfMemoryError: Java heap space"""


def test_a_failure_without_a_condition_is_told_by_the_cause_in_java() -> None:
    assert (
        in_a_line(RuntimeError(HEAP)) == first_line(RuntimeError(HEAP)) == "java.lang.OutOfMemoryError: Java heap space"
    )
    alone = "An error occurred while calling o7.toJSON.\n: java.lang.StackOverflowError\n\tat a.b(C.java:1)"
    assert in_a_line(RuntimeError(alone)) == "java.lang.StackOverflowError"
    assert first_line(RuntimeError("Cannot resolve 'x'.\nProject")) == "Cannot resolve 'x'."


def test_a_full_disk_is_known_whoever_met_it() -> None:
    assert is_disk(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk(RuntimeError(f"{ABORTED}\nCaused by: java.io.IOException: No space left on device"))
    assert not is_disk(OSError(errno.ENOENT, "No such file"))
    assert not is_disk(RuntimeError(ABORTED))


def test_a_failure_of_the_object_store_is_known() -> None:
    denied = "Caused by: software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Status Code: 403)"
    assert is_store(f"{ABORTED}\n{denied}")
    assert is_store(f"{ABORTED}\nCaused by: org.apache.hadoop.fs.s3a.AWSClientIOException: connection reset")
    assert store_failure(ABORTED) is None
    assert isinstance(store_failure(f"{ABORTED}\n{denied}"), TransientError)


def test_what_lies_under_an_error_with_a_name_is_read_too() -> None:
    """Spark names the failure of a store while state is loaded, and leaves its cause out of the text."""
    under = "Caused by: org.apache.hadoop.fs.s3a.AWSClientIOException: connection reset"
    error = RuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.")
    vars(error)["_cause"] = SimpleNamespace(
        _stackTrace=f"org.apache.spark.SparkException: it\n\tat a.b(C.java:1)\n{under}"
    )
    query: Any = SimpleNamespace(exception=lambda: error)
    assert cause(query) == f"{error}\n{under}"
    assert is_store(cause(query))


WORKER = 'org.apache.spark.api.python.PythonException: Traceback:\n  File "/worker.py", line 7, in main\n'


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (f"{WORKER}ModuleNotFoundError: No module named 'tiny.deep'", "find no module 'tiny.deep'"),
        (
            'java.io.IOException: Cannot run program "/env/bin/python": error=2, No such file',
            "cannot run /env/bin/python",
        ),
        (f"{WORKER}ValueError: 'ModuleNotFoundError: No module named 'x''", ""),  # as a hostile event may make one say
        ('java.lang.X: java.io.IOException: Cannot run program "x"', ""),
    ],
)
def test_what_python_workers_lack_is_said_with_what_to_do(error: str, what: str) -> None:
    text = f"[STREAM_FAILED] Query [id = 1] terminated.\n{ABORTED}\nCaused by: {error}\n\tat x"
    needs = "executors need what is installed here, at the same path (docs/write/packages.md)"
    assert missing_in_workers(text) == (f"Python workers {what}; {needs}" if what else "")
    assert in_a_line(RuntimeError(text)).startswith("Python workers") == bool(what)


def test_executors_without_a_key_are_a_setting_to_be_put_right() -> None:
    text = "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided"
    failure = store_failure(f"{ABORTED}\nCaused by: java.nio.file.AccessDeniedException: : {text}")
    assert isinstance(failure, ConfigError)
    assert "storage.s3_credentials_file: executors find no key" in str(failure)


IN_A_WORKER = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 1982, in main
    process()
  File "/shop/detectors/weighted.py", line 9, in weight
    return 1 // parts(action)
           ~~^^~~~~~~~~~~~~~
  File "/shop/detectors/weighted.py", line 14, in parts
    return int(action)
ValueError: invalid literal for int() with base 10: 'x'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:679)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):"""


def test_the_cause_of_a_failure_is_the_line_of_the_file_that_raised_it() -> None:
    shop, what = Path("/shop"), "ValueError: invalid literal for int() with base 10: 'x'"
    found = cause_of(RuntimeError(f"the query failed: {IN_A_WORKER}"), shop)
    assert found == FailureCause(what=what, file="detectors/weighted.py", line=14)
    everywhere = cause_of(FailsOnAll(IN_A_WORKER, "events.logins/1/17"), shop)
    assert str(everywhere) == f"detectors/weighted.py:14: {what}, on event events.logins/1/17"
    assert root_cause(RuntimeError(IN_A_WORKER)) == what
    assert root_cause(RuntimeError(ABORTED)) == "java.lang.RuntimeException: part-00003.parquet is not a Parquet file"
    thrown = "An error occurred while calling None.Context.\n: java.lang.Exception: above the threshold\n\tat a.B"
    assert root_cause(RuntimeError(thrown)) == "java.lang.Exception: above the threshold"


def test_the_cause_of_a_fault_is_its_place_and_of_anything_else_what_it_says() -> None:
    fault = ConfigError.one("/shop/detectors/d.py", "fails: ValueError: no", key="detect", line=7)
    assert str(cause_of(fault, Path("/shop"))) == "detectors/d.py:7: detect: fails: ValueError: no"
    assert str(cause_of(TocsinError("Kafka is away"), Path("/shop"))) == "Kafka is away"
    assert str(cause_of(RuntimeError(ABORTED), Path("/shop"))).startswith("[FAILED_READ_FILE.NO_HINT] Encountered")


def test_a_program_that_fails_unexpectedly_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise RuntimeError("Invalid JSON\n  For further information visit")

    logs.configure("seal:logins")
    assert exit_code_of(fail) == ExitCode.FAILED
    last = capsys.readouterr().err.splitlines()[-1]
    assert 'event="job failed" error="RuntimeError: Invalid JSON"' in last
