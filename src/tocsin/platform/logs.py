"""Log lines of jobs and of the stack: `key=value`, one event in one line, UTC, on stderr.

::

    time=2026-01-01T00:00:00.000000Z level=info job=ingest:logins event="query started" partitions=2

With `logs.format = "json"` each line is an object with the same keys, and `run`, by which the processes
of a job are told apart.

Whoever starts a job sends its stderr into `settings.log(job)`. Use it as `structlog.get_logger().info("query started",
partitions=2)`; lines of the standard `logging` module and Python warnings come out in the same form.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import threading
import time
import uuid
from pathlib import Path

import structlog
from structlog.typing import Processor

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import load_settings

LIMIT_BYTES = 64 * 1024 * 1024
"""Three times the length at which supervision rotates a log."""
_LOOK_SECONDS = 0.25
# `httpx` logs whole addresses, and those of receivers are secrets. A module of Great Expectations sets its own level,
# and py4j tells the root logger, with a traceback, of what it tries once more, as when its JVM has just been ended.
_CHATTY = ("great_expectations", "httpx", "py4j", "pyiceberg")

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
)


def configure(job: str, *, file: Path | None = None) -> None:
    """Send all log lines of this process to stderr, or to the end of `file`, each with `job`. OSError if that fails."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_bound_job(job), *_SHARED],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(formatter)
    handler.addFilter(_is_told)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _bound_job(job),
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _renderers() -> list[Processor]:
    """Write lines as the settings say; settings with a fault, of which the job tells next, as `key=value`."""
    with contextlib.suppress(ConfigError):
        if load_settings().logs.format == "json":
            run = uuid.uuid4().hex[:12]

            def add_run(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
                return {"time": event.pop("time"), "run": run, **event}

            return [add_run, structlog.processors.JSONRenderer(default=str)]
    return [structlog.processors.LogfmtRenderer(key_order=["time", "level", "job", "event"], drop_missing=True)]


def keep_bounded(limit_bytes: int = LIMIT_BYTES) -> None:
    """Cut standard error to nothing whenever it is a file that has grown beyond `limit_bytes`, from a thread.

    Supervision rotates logs, but looks once a second: a job that prints without end writes a gigabyte in that time.
    """
    threading.Thread(target=_cut, args=(sys.stderr.fileno(), limit_bytes), name="log bound", daemon=True).start()


def _cut(file: int, limit_bytes: int) -> None:
    with contextlib.suppress(OSError):  # it has been closed: the job has ended, and its process goes on
        while stat.S_ISREG((now := os.fstat(file)).st_mode):
            if now.st_size > limit_bytes:
                os.ftruncate(file, 0)  # it is open in append mode
                structlog.get_logger().warning("log cut, too much was printed at once", bytes=now.st_size)
            time.sleep(_LOOK_SECONDS)


def _is_told(record: logging.LogRecord) -> bool:
    """Return whether people hear of `record`: what some packages only mention is left out."""
    is_chatty = record.name.partition(".")[0] in _CHATTY or "py4j" in record.pathname
    return record.levelno >= logging.WARNING or not is_chatty


def _bound_job(job: str) -> Processor:
    """Add `job` to each line, of every thread (context variables would miss those started before)."""

    def bind(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("job", job)
        return event

    return bind
