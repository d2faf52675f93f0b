"""Find out why a job or a query failed: Spark gives it as text, and what to do next depends on it."""

from __future__ import annotations

import errno
import re
import tempfile
from pathlib import Path
from typing import Protocol

from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.model.job_report import FailureCause

_UNWRITABLE = ("No space left on device", "Read-only file system", "Disk quota exceeded", "Permission denied")
_KAFKA = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "org.apache.kafka.common.errors.RetriableException",
    "org.apache.kafka.common.errors.NotLeaderOrFollowerException",
    "Timeout of 60000ms expired before",
    "Timed out waiting for a node assignment",
    "Failed to update metadata after",
)
_STORE = ("software.amazon.awssdk.", "org.apache.hadoop.fs.s3a.")
_NO_KEY = "NoAuthWithAWSException"
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_NO_PYTHON = re.compile(r"^(?:Caused by: |: )?java\.io\.IOException: Cannot run program \"([^\"\n]+)\"", re.MULTILINE)
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_CAUSE = "Caused by: "
_BY_PY4J = "An error occurred while calling "
_THROWN = ": "  # before the first of the chain, as Py4J writes it
_MOST = 500
_PROBE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM)


class Unwritable(TocsinError):
    """The disk of the checkpoint is full or cannot be written; a restart helps once there is room."""


class FailsOnAll(RuntimeError):
    """A query fails on whatever record it reads; `event` is one of them, and the text is the error itself."""

    def __init__(self, text: str, event: str) -> None:
        self.event = event
        super().__init__(text)


def cause_of(error: BaseException, project: Path) -> FailureCause:
    """Find the cause of `error`: the fault of a file, or the line of a file of `project` that raised it in a worker."""
    if isinstance(error, ConfigError):
        first = error.faults[0]
        what = f"{first.key}: {first.what}" if first.key else first.what
        return FailureCause(what=what[:_MOST], file=_relative(first.where, project), line=first.line)
    text, event = str(error), error.event if isinstance(error, FailsOnAll) else ""
    frames = [found for found in _FRAME.finditer(text) if found[1].startswith(f"{project}/")]
    if not frames:
        return FailureCause(what=in_a_line(error), event=event)
    last = frames[-1]
    return FailureCause(
        what=raised(text[last.end() :]) or in_a_line(error),
        file=_relative(last[1], project),
        line=int(last[2]),
        event=event,
    )


def raised(traceback: str) -> str:
    """Read the error at the end of a traceback of Python: its first line that is not indented; "" without one."""
    lines = traceback.splitlines()[1:]
    return next((line.strip()[:_MOST] for line in lines if line.strip() and not line[0].isspace()), "")


def root_cause(error: Exception) -> str:
    """Say in one line what lies under a failure of Spark: the error of a Python worker, or the last of Java's chain."""
    text = str(error)
    if named := _raised_last(text):
        return named
    causes = _causes(text)
    return causes[-1][:_MOST] if causes else in_a_line(error)


def _raised_last(text: str) -> str:
    """Read the error behind the last frame of Python in `text`; "" without one."""
    frames = list(_FRAME.finditer(text))
    return raised(text[frames[-1].end() :]) if frames else ""


def _causes(text: str) -> list[str]:
    """List what Java says in its chain of errors, the first one thrown last; each in one line."""
    lines = text.splitlines()
    return [line.removeprefix(start) for start in (_THROWN, _CAUSE) for line in lines if line.startswith(start)]


def _relative(where: str, project: Path) -> str:
    return where.removeprefix(f"{project}/")


class EndedQuery(Protocol):
    """A streaming query of Spark, as far as its end goes; this room does not import Spark."""

    def exception(self) -> Exception | None:
        """Return why it ended; None if it was stopped."""


def cause(query: EndedQuery) -> str:
    """Read why `query` has ended, with Java's chain of causes; "" when it was stopped without an error."""
    error = query.exception()
    if error is None:
        return ""
    # Of an error that has a name in Spark, such as CANNOT_LOAD_STATE_STORE, the text lacks what lies under it.
    text, under = str(error), getattr(getattr(error, "_cause", None), "_stackTrace", None) or ""
    further = (line for line in under.splitlines() if line.startswith(_CAUSE) and line not in text)
    return "\n".join([text, *further])


def is_unwritable(error: str) -> bool:
    """Return whether the text of an error says that the state folder could not be written."""
    return any(text in error for text in _UNWRITABLE)


def refusal(folder: Path) -> str:
    """Say why a megabyte cannot be written into `folder`, in the system's words; "" when it can.

    Where one task fails for want of room, Spark may report the failure of another that waited for it.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    except OSError as error:
        if is_disk(error):
            return f"{folder}: {error.strerror}"
    return ""


def is_kafka(error: str) -> bool:
    """Return whether the text of an error says that Kafka was away, so that a retry helps."""
    return any(text in error for text in _KAFKA)


def is_store(error: str) -> bool:
    """Return whether the text of an error says that the object store of checkpoints refused, or did not answer."""
    return any(text in error for text in _STORE)


def store_failure(error: str) -> TocsinError | None:
    """Say what to do if the object store of checkpoints has failed a query with the text `error`; else None.

    A retry helps unless a task has found no key: the driver has one, or it would not have begun.
    """
    if not is_store(error):
        return None
    if _NO_KEY in error:
        what = "executors find no key for the object store: the file must be on their machines too, and readable there"
        return ConfigError.one("spark.master", what, key="storage.s3_credentials_file")
    return TransientError(f"the object store of checkpoints failed: {root_cause(RuntimeError(error))}")


def missing_in_workers(error: str) -> str:
    """Say in a line what a Python worker has not found, by the text of an error: a module, or Python; else ""."""
    # Only what was raised counts: a value of an event may read like it.
    if module := _NO_MODULE.match(_raised_last(error)):
        what = f"find no module '{module[1]}'"
    elif python := _NO_PYTHON.search(error):
        what = f"cannot run {python[1]}"
    else:
        return ""
    return f"Python workers {what}; executors need what is installed here, at the same path (docs/write/packages.md)"


def is_disk(error: BaseException) -> bool:
    """Return whether `error`, of our own files or of a Spark task, says that a disk is full or cannot be written."""
    return error.errno in _FULL if isinstance(error, OSError) else is_unwritable(str(error))


def in_a_line(error: BaseException) -> str:
    """Say in one line why a batch failed: what a Python worker raised, the first condition that Spark names, or Java's.

    Such as `[FAILED_READ_FILE.NO_HINT] Encountered error while reading file ...`, which stands behind some lines that
    only tell that a job was aborted; or `java.lang.OutOfMemoryError: Java heap space`.
    """
    text = str(error).strip()
    if isinstance(error, (TocsinError, OSError)):
        return text
    if missing := missing_in_workers(text):
        return missing
    if raised_last := _raised_last(text):
        return raised_last
    if named := _CONDITION.search(text):
        return named[0][:_MOST]
    if text.startswith(_BY_PY4J) and (causes := _causes(text)):
        return causes[-1][:_MOST]
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"[:_MOST]


def first_line(error: object) -> str:
    """Cut the first line off what Spark says, 300 characters at most, since a plan may follow; of Java, its cause."""
    text = str(error).strip()
    causes = _causes(text) if text.startswith(_BY_PY4J) else []
    return (causes[-1] if causes else text.splitlines()[0])[:300]
