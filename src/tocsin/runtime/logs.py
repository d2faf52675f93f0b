"""Log lines of jobs and of the stack: `key=value`, one event in one line, UTC, on stderr.

::

    time=2026-01-01T00:00:00.000000Z level=info job=ingest:logins event="query started" partitions=2

Whoever starts a job sends its stderr into `settings.log(job)`. Use it as `structlog.get_logger().info("query started",
partitions=2)`; lines of the standard `logging` module and Python warnings come out in the same form.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog
from structlog.typing import Processor

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
)


def configure(job: str, *, file: Path | None = None) -> None:
    """Send all log lines of this process to stderr, or to the end of `file`, each with `job`.

    Call it once, at the start of `main`.

    Raises:
        OSError: `file` cannot be written.
    """
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_bound_job(job), *_SHARED],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.LogfmtRenderer(key_order=["time", "level", "job", "event"], drop_missing=True),
        ],
    )
    handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(formatter)
    handler.addFilter(_is_no_retry_of_py4j)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
    for chatty in ("py4j", "great_expectations"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
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


def _is_no_retry_of_py4j(record: logging.LogRecord) -> bool:
    """py4j tells the root logger, with a traceback, of what it tries once more, as when its JVM has just been ended."""
    return record.levelno >= logging.WARNING or "py4j" not in record.pathname


def _bound_job(job: str) -> Processor:
    """Adds `job` to each line, of every thread (context variables would miss those started before)."""

    def bind(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("job", job)
        return event

    return bind
