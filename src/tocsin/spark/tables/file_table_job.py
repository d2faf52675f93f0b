"""A table that is made of a file of the project: read when it changes, taken whole or not at all."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import structlog

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.kafka.reporter import Reporter
from tocsin.spark.tables.file_rows import UnusableFile, read_rows
from tocsin.spark.tables.table_job import TableJob, TopicTableJob
from tocsin.spark.tables.version_store import RowChange, VersionStore

_LOOK_SECONDS = 1.0
_EVER = datetime.fromtimestamp(0, UTC)
_log = structlog.get_logger()


class FileTableJob(TableJob):
    """Keeps a table that is made of a file.

    The rows of the first reading hold for all time, since no job has joined others before. A file that cannot be used
    changes nothing: the rows before stay in force, and the report says why.
    """

    def __init__(self, settings: Settings, spec: TableSpec, reporter: Reporter, stop: threading.Event) -> None:
        """See `TableJob`."""
        super().__init__(settings, spec, reporter, stop)
        self._path = settings.project / str(spec.file)
        self._seen: list[int] | None = None
        self._refused: list[int] | None = None

    def _step(self, store: VersionStore) -> None:
        now, stamp = datetime.now(UTC), self._stamp()
        if stamp == self._refused:
            now = self._known_until
        elif stamp != store.fact("stamp"):
            # One that changes between two looks is still being written.
            now = self._take(store, stamp, now) if stamp == self._seen else self._known_until
        else:
            self._refused, self._reason = None, ""  # the file that was read is back
        self._seen = stamp
        self._tend(store, now)
        self._stop.wait(_LOOK_SECONDS)

    @property
    def _known_until(self) -> datetime:
        return self._published.complete_at if self._published is not None else _EVER

    def _take(self, store: VersionStore, stamp: list[int], now: datetime) -> datetime:
        """Read the file; returns until when the rows are known: where it cannot be used, as before."""
        try:
            rows = read_rows(self._path, self._spec)
        except UnusableFile as error:
            self._refused, self._reason = stamp, f"{error}; the rows before stay in force"
            self._counts["unusable"] += 1
            _log.error("file refused", file=str(self._path), reason=str(error))
            if not store.is_complete:
                raise TransientError(str(error)) from error
            return self._known_until
        appended_at = now if store.is_complete else _EVER
        store.begin_again()
        changes = [RowChange(row.key, row, appended_at) for row in rows]
        self._is_changed |= store.apply(changes, {}, now, self._number + 1)
        self._is_changed |= store.end_reading(now, self._number + 1)
        store.note(stamp=stamp)
        self._refused, self._reason = None, ""
        self._counts["read"] += len(rows)
        _log.info("file read", file=str(self._path), rows=len(rows))
        return now

    def _stamp(self) -> list[int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise TransientError(f"{self._path} cannot be read: {error.strerror}") from error
        return [stat.st_ino, stat.st_size, stat.st_mtime_ns]


def run(job: Job) -> None:
    """Run the job of one table; errors as of `make_job`."""
    make_job(job.settings, job.name, job.reporter, job.stop).run()


def make_job(settings: Settings, table: str, reporter: Reporter, stop: threading.Event) -> TableJob:
    """Make the job that keeps `table`. ConfigError if there is no such table."""
    spec = read_catalog(settings.project).table(table)
    kind = TopicTableJob if spec.file is None else FileTableJob
    return kind(settings, spec, reporter, stop)
