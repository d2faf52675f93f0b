"""The job `view:<name>`: keeps the read model of a view, and its sink, equal to its topic.

While Kafka, the sink or room on the disk is missing it waits, says so, and goes on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import structlog
from confluent_kafka import Message

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import TOPICS_RECREATED, JobReport, JobState
from tocsin.declare.model.names import compute_job, view_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.background_value import BackgroundValue
from tocsin.platform.kafka.reader import SHARING, Offsets, appended_at
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.reporter import Reporter, ReportReader
from tocsin.platform.kafka.retry import Retry
from tocsin.platform.kafka.topic_follower import TopicFollower
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.views.applier import Applier
from tocsin.views.rebuild.rebuild_request import pending_builds
from tocsin.views.row_store import RowStore, store_path
from tocsin.views.sinks.sink import missing_address, open_sink
from tocsin.views.stored_row import RowRecord, TopicWrite

_BATCH = 1000
_POLL_SECONDS, _LOOK_SECONDS, _SINK_SECONDS = 0.1, 0.5, 5.0
_LAST_LOOK_SECONDS = 10.0
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Mark:
    """What the compute job reported, and the ends of the topic behind what it had written by then."""

    report: JobReport
    ends: Offsets


class ViewApplierJob:
    """Feeds an `Applier` until `stop` is set."""

    def __init__(self, settings: Settings, view: str, reporter: Reporter, stop: threading.Event) -> None:
        """Describe the job; ConfigError if there is no such view, or as of `open_sink`."""
        view, _, number = view.partition(".")
        self._settings, self._reporter, self._stop = settings, reporter, stop
        self._spec = read_catalog(settings.project).view(view)
        self._sink = open_sink(self._spec.shown, settings, is_shared=bool(number))
        self._unwritten = missing_address(self._spec, settings)
        if self._unwritten:
            _log.warning("sink not written", reason=self._unwritten)
        self._topic = SharedViewTopic(settings, view) if number else ViewTopic(settings, view)
        self._reports, job = ReportReader(settings, timeout_seconds=3.0), compute_job(view)
        # In the background: a look takes up to 0.1 s, and rows must not wait. The job itself says when Kafka is away.
        self._compute = BackgroundValue(lambda: self._reports.latest().get(job), _LOOK_SECONDS)
        self._retry, self._batches = Retry(reporter, stop), 0
        self._sink_checked = float("-inf")
        self._mark: _Mark | None = None
        self._measured: JobReport | None = None
        self._removing: Offsets = {}

    def run(self) -> None:
        """Apply until `stop` is set."""
        path, table = store_path(self._settings, self._spec.name), self._spec.shown.table
        store = self._retry.call(lambda: RowStore(path, table))
        try:
            if store is not None:
                applier = Applier(self._spec, store, self._sink)
                while not self._stop.is_set():
                    self._retry.call(lambda: self._step(store, applier))
        finally:
            with contextlib.suppress(TransientError):
                self._close(store)

    def _close(self, store: RowStore | None) -> None:
        self._topic.close()
        self._compute.wait(_LAST_LOOK_SECONDS)  # it must not be closed while it is read
        self._reports.close()
        if store is not None:
            store.close()
        if self._sink is not None:
            self._sink.close()

    def _step(self, store: RowStore, applier: Applier) -> None:
        """Apply what is there, or learn after a moment that nothing is."""
        if time.monotonic() - self._sink_checked > _SINK_SECONDS:
            applier.check_sink()
            self._sink_checked = time.monotonic()
        if not self._topic.is_following and not self._topic.follow_for(applier):
            applier.restart()
            return
        messages = self._topic.poll(_BATCH, _POLL_SECONDS)
        if messages:
            try:
                writes = applier.apply([read_row_record(message) for message in messages])
                self._topic.write(writes)
            except TransientError:
                self._topic.again()
                raise
            if applier.is_set_back:
                self._topic.again()
                return
            self._topic.done(messages)
            self._topic.commit()
            self._batches += 1
        report = self._compute.known().value  # before the ends of the topic: what it tells of lies before them
        if (ends := self._topic.measure()) is not None:
            self._look(store, applier, report, ends)

    def _look(self, store: RowStore, applier: Applier, report: JobReport | None, ends: Offsets) -> None:
        """Learn how far the compute job is, and finish what follows from it."""
        if not self._topic.is_leading:
            self._mark = None
        if self._mark is not None and self._topic.has_reached(self._mark.ends):
            self._conclude(self._mark.report, applier)
            self._mark = None
        if report is not None and not applier.expect(report.build):
            self._topic.again()
        elif self._mark is None and report is not None and self._topic.is_leading:
            self._mark = _Mark(report, ends)
        self._report(store, applier, report)

    def _conclude(self, report: JobReport, applier: Applier) -> None:
        """Act on what the compute job had reported when it had written what is applied by now."""
        applier.refresh()
        if report.build and report.build != applier.current:
            if not report.is_build_complete:
                return
            view, state = self._spec.name, self._settings.state
            pending = pending_builds(state, stored_folder(self._settings, compute_job(view)), view)
            self._topic.write(applier.switch_writes(report.build, pending))
            applier.switch(report.build, pending)
        if report.watermark is None:
            return
        applier.finish(report.watermark)
        if self._topic.has_reached(self._removing) and (gone := applier.find_expired(report.watermark)):
            self._topic.write(gone)
            self._removing = self._topic.look()

    def _freshness(self, measured: JobReport, *, is_rebuilding: bool) -> dict[str, object]:
        """Describe the rows as of the last report that told how far the compute job is: readers add its age."""
        return {
            "watermark": None if measured.watermark is None else measured.watermark.isoformat(),
            "lag_records": self._topic.lag_records + measured.lag_records,
            "lag_seconds": round(self._topic.lag_seconds + measured.lag_seconds, 3),
            "at": measured.at.isoformat(),
            "rebuilding": is_rebuilding,
        }

    def _report(self, store: RowStore, applier: Applier, report: JobReport | None) -> None:
        watermark = None if report is None else report.watermark
        is_rebuilding = report is not None and bool(report.build) and report.build != applier.current
        if report is not None and report.has_lag:
            self._measured = report
        if self._topic.is_leading and self._measured is not None:
            store.note(freshness=self._freshness(self._measured, is_rebuilding=is_rebuilding))
        self._retry.recovered()
        counts = {**applier.counts, "refused": 0 if self._sink is None else self._sink.refused}
        if isinstance(self._topic, SharedViewTopic):
            counts["partitions"] = len(self._topic.partitions)
        if self._topic.recreated:
            counts[TOPICS_RECREATED] = self._topic.recreated
        self._reporter.update(
            state=JobState.RUNNING,
            reason="a new build is filling; readers see the one before" if is_rebuilding else self._unwritten,
            rows_in=applier.counts["applied"],
            rows_out=applier.counts["applied"] - applier.counts["unusable"],
            batch_id=self._batches,
            lag_records=self._topic.lag_records,
            lag_seconds=self._topic.lag_seconds,
            watermark=watermark,
            build=applier.current or "",
            counts={name: float(count) for name, count in counts.items()},
        )


def run(job: Job) -> None:
    """Run the job of one view, or with a dot and a number in its name one of several that share its partitions."""
    ViewApplierJob(job.settings, job.name, job.reporter, job.stop).run()


_REMOVES = "removes"


class ViewTopic(TopicFollower):
    """The topic of one view; see `TopicFollower`."""

    def __init__(self, settings: Settings, view: str) -> None:
        super().__init__(settings, view_job(view), settings.names.view(view))
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=10.0)

    @property
    def is_leading(self) -> bool:
        """Return whether it falls to this process to finish windows, switch builds and report freshness."""
        return True

    def follow_for(self, applier: Applier) -> bool:
        """Read on where `applier` is, and let it know the id of the topic; see `follow`."""
        if not self.follow(applier.positions(), applier.topic_id):
            return False
        applier.note_topic(self.topic_id)
        return True

    def write(self, writes: Iterable[TopicWrite]) -> None:
        """Write upserts and deletions to the topic; returns when Kafka has them."""
        for row_write in writes:
            value = None if row_write.row is None else row_write.row.to_record()
            headers = {} if row_write.row is not None else {"headers": {_REMOVES: str(row_write.offset).encode()}}
            self._writer.write(self._reader.name, value, row_write.identity, partition=row_write.partition, **headers)
        self._writer.flush()


class SharedViewTopic(ViewTopic):
    """The topic of one view, of which several processes read some partitions each: those that Kafka assigns to them."""

    _CONFIG: ClassVar[dict[str, Any]] = ViewTopic._CONFIG | SHARING

    def __init__(self, settings: Settings, view: str) -> None:
        super().__init__(settings, view)
        self.partitions: set[int] = set()
        self._all: list[int] = []
        self._applier: Applier | None = None

    @property
    def is_leading(self) -> bool:
        """See `ViewTopic`: whoever has the first partition."""
        return 0 in self.partitions

    def follow_for(self, applier: Applier) -> bool:
        """See `ViewTopic`."""
        if not super().follow_for(applier):
            return False
        if self._applier is None:
            self._reader.share(self._take, self._give_up)
        self._applier = applier
        return True

    def _start(self, offsets: Offsets) -> None:
        self._all = list(offsets)
        self._next = {partition: offsets[partition] for partition in self.partitions}
        self._reader.seek(self._next)

    def _take(self, partitions: list[int]) -> Offsets:
        first, applied = self._ends.bounds(partitions)[0], self._positions(partitions)
        starts = {partition: max(low, applied.get(partition, 0)) for partition, low in first.items()}
        _log.info("partitions taken over", partitions=partitions)
        self.partitions |= {*partitions}
        self._next = self._next | starts
        return starts

    def _give_up(self, partitions: list[int]) -> None:
        _log.info("partitions given up", partitions=partitions)
        self.partitions -= {*partitions}
        self._next = {partition: at for partition, at in self._next.items() if partition in self.partitions}

    def _expect_partitions(self, there: list[int], position: Offsets) -> None:
        del position
        self._all = there  # Kafka assigns new ones by itself

    def _others(self) -> Offsets:
        applied = self._positions([])
        return {partition: applied.get(partition, 0) for partition in self._all if partition not in self.partitions}

    def _positions(self, partitions: list[int]) -> Offsets:
        return {} if self._applier is None else self._applier.positions(partitions)


def read_row_record(message: Message) -> RowRecord:
    """Read what a record of the topic of a view says."""
    removes: Any = dict(message.headers() or []).get(_REMOVES)
    key: Any = message.key() or b""
    return RowRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        appended_at=appended_at(message),
        key=key.decode(errors="replace"),
        value=message.value(),
        removes=int(removes) if removes is not None and removes.isdigit() else None,
    )
