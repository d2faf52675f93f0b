"""The job `table:<name>`: keeps the versions of a table's rows, and a snapshot of them for the jobs that join it.

What all such jobs do is in `TableJob`; `TopicTableJob` follows a topic, `tocsin.spark.tables.file_table_job` a file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from confluent_kafka import Message

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import TOPICS_RECREATED, JobState
from tocsin.declare.model.names import compute_job, table_job
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import appended_at
from tocsin.platform.kafka.reporter import Reporter, ReportReader
from tocsin.platform.kafka.retry import Retry
from tocsin.platform.kafka.topic_follower import TopicFollower
from tocsin.platform.state_db import TOPIC_ID
from tocsin.platform.storage.job_folders import claim
from tocsin.spark.tables.published_table import PublishedRows, TableFolder
from tocsin.spark.tables.table_row import UnusableRow, read_row
from tocsin.spark.tables.version_store import RowChange, VersionStore

_BATCH, _POLL_SECONDS = 1000, 0.2
_FORGET_SECONDS, _COST = 600.0, 10
_CONFIRM = timedelta(seconds=5)
_OVER = "has max_rows = {} versions, so changes are left out, also of known keys: raise it, and send them again"
_log = structlog.get_logger()


class TableJob(ABC):
    """Keeps one table until `stop` is set."""

    def __init__(self, settings: Settings, spec: TableSpec, reporter: Reporter, stop: threading.Event) -> None:
        """Describe the job of `spec`; nothing is opened yet."""
        self._reporter, self._stop, self._settings, self._spec = reporter, stop, settings, spec
        self._folder = TableFolder(settings, spec)
        self._retry = Retry(reporter, stop)
        self._counts: Counter[str] = Counter()
        self._published: PublishedRows | None = None
        self._is_changed, self._reason = True, ""
        self._forgot = float("-inf")
        self._next_publication = 0.0

    @abstractmethod
    def _step(self, store: VersionStore) -> None:
        """Read what is new, and `_tend` the table now and then; TransientError for what a retry helps."""

    def _close(self) -> None:  # noqa: B027 - a file needs nothing
        """Leave what was followed."""

    def run(self) -> None:
        """Keep it until told to stop."""
        store = self._retry.call(self._open)
        try:
            while store is not None and not self._stop.is_set():
                self._retry.call(lambda: self._step(store))
        finally:
            self._close()
            with contextlib.suppress(TransientError):
                if store is not None:
                    store.close()

    def _open(self) -> VersionStore:
        """Open the versions, to go on with what is in force if that was made of them.

        Else another machine has made it meanwhile. Then all is read anew, and rows hold as their records say: what this
        machine knows is old, and what only the other one knew, such as what came late, is lost.
        """
        claim(self._settings)
        published, store = self._folder.current(), VersionStore(self._folder.store, self._spec)
        if published is None or published.made_by in ("", store.id):
            self._published = published
        else:
            _log.warning("versions of another machine in force, reading all anew")
            store.forget_all()
        return store

    def _tend(self, store: VersionStore, complete_at: datetime, lag: tuple[int, float] = (0, 0.0)) -> None:
        """Publish changes once all is read that was there by `complete_at`; report the lag, in records and seconds."""
        now = datetime.now(UTC)
        if time.monotonic() - self._forgot > _FORGET_SECONDS:
            self._forgot = time.monotonic()
            self._is_changed |= store.forget(now) > 0
        self._publish(store, complete_at)
        self._retry.recovered()
        self._reporter.update(
            state=JobState.RUNNING,
            reason=_OVER.format(self._spec.max_rows) if store.counts["over_max_rows"] else self._reason,
            rows_in=self._counts["read"],
            rows_out=store.size,
            lag_records=lag[0],
            lag_seconds=lag[1],
            counts={name: float(n) for name, n in (self._counts + store.counts).items() if name != "read"},
        )

    @property
    def _number(self) -> int:
        return 0 if self._published is None else self._published.number

    def _publish(self, store: VersionStore, complete_at: datetime) -> None:
        now = time.monotonic()
        if not store.is_complete or (self._is_changed and now < self._next_publication):
            return  # whoever joins it waits until all of it is there
        if self._is_changed:
            if self._published is not None:
                store.postpone(self._number, datetime.now(UTC))
            self._published = self._folder.publish(store.versions(), complete_at, store.id)
            self._is_changed = False
            self._next_publication = time.monotonic() + _COST * (time.monotonic() - now)
        elif self._published is not None and complete_at - self._published.complete_at > _CONFIRM:
            self._published = self._folder.confirm(self._published, complete_at)


class TopicTableJob(TableJob):
    """Keeps a table that is made of a topic: of the events of a source, the rows of a view, or somebody's records."""

    def __init__(self, settings: Settings, spec: TableSpec, reporter: Reporter, stop: threading.Event) -> None:
        """See `TableJob`."""
        super().__init__(settings, spec, reporter, stop)
        self._topic = TopicFollower(settings, table_job(spec.name), spec.follows(settings.names))
        self._reports = ReportReader(settings, timeout_seconds=3.0) if spec.view is not None else None

    def _close(self) -> None:
        self._topic.close()
        if self._reports is not None:
            self._reports.close()

    def _step(self, store: VersionStore) -> None:
        if not self._topic.is_following:
            if not self._topic.follow(store.offsets(), store.fact(TOPIC_ID) or ""):
                store.begin_again()
                return
            store.note(**{TOPIC_ID: self._topic.topic_id})
        messages = self._topic.poll(_BATCH, _POLL_SECONDS)
        if messages:
            try:
                offsets = {message.partition() or 0: (message.offset() or 0) + 1 for message in messages}
                changes = self._changes(messages, store)
                self._is_changed |= store.apply(changes, offsets, datetime.now(UTC), self._number + 1)
            except TransientError:
                self._topic.again()
                raise
            self._topic.done(messages)
            self._topic.commit()
            self._counts["read"] += len(messages)
        if self._topic.measure() is not None:
            self._report_progress(store)

    def _changes(self, messages: Sequence[Message], store: VersionStore) -> list[RowChange]:
        changes: list[RowChange] = []
        build = store.fact("build") if self._spec.view is not None else ""
        for message in messages:
            key: Any = message.key() or b""
            value: Any = message.value()
            try:
                row = None if value is None else read_row(value, self._spec)
            except UnusableRow as error:
                self._counts["unusable"] += 1
                self._reason = f"left out record {message.partition()}/{message.offset()}: it {error}"
                _log.warning(
                    "record left out", partition=message.partition(), offset=message.offset(), reason=str(error)
                )
                continue
            is_tick = value is not None and row is None
            if not is_tick and (row is None or row.build in ("", build)):
                changes.append(RowChange(key.decode(errors="replace"), row, appended_at(message)))
        return changes

    def _report_progress(self, store: VersionStore) -> None:
        if self._follow_build(store):
            return
        if self._topic.lag_records == 0:
            self._is_changed |= store.end_reading(datetime.now(UTC), self._number + 1)
        self._counts[TOPICS_RECREATED] = self._topic.recreated
        self._tend(store, self._topic.complete_at or EPOCH, (self._topic.lag_records, self._topic.lag_seconds))

    def _follow_build(self, store: VersionStore) -> bool:
        """Read a view from its start when another build of it is complete; True when one is."""
        if self._reports is None:
            return False
        report = self._reports.latest().get(compute_job(str(self._spec.view)))
        if report is None or not report.build or report.build == store.fact("build"):
            return False
        if store.fact("build") is not None and not report.is_build_complete:
            return False
        store.note(build=report.build)
        store.begin_again()
        self._topic.again()
        return True
