"""Jobs tell how they are: a `Reporter` writes one `JobReport` after each change, and every few seconds while they live.

A report goes to the `job-metrics` topic (for other machines) and into the heartbeat file (which works while Kafka is
down).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
from confluent_kafka import KafkaError, Message
from pydantic import ValidationError

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import FailureCause, JobReport, JobState
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.platform import heartbeat
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter

EVERY_SECONDS = 5.0
_LOOK_SECONDS, _YOUNG_SECONDS = 30.0, 60.0
_CLOSE_SECONDS = 2.0


class Reporter:
    """Keeps one job's report up to date and published. Safe to use from several threads.

    Reports that Kafka does not take are dropped, not queued: the next one says more. Nothing here raises for a Kafka
    that is away.
    """

    def __init__(self, settings: Settings, job: str, *, beside: bool = False) -> None:
        """Start reporting `job` as STARTING, from a background thread, until `close`.

        With `beside` another process leads the job. Until `lead` is called the job's report is that one's, and this one
        has a heartbeat of its own, in which RUNNING reads READY.
        """
        self._settings, self._topic = settings, settings.names.job_metrics
        self._beside = beside
        self._await_answer: Callable[[], None] = lambda: None
        self._elsewhere: Callable[[], tuple[float, int]] = lambda: (0.0, 0)
        self._reads_batches = False
        self._tree, self._lock, self._stop = _Tree(), threading.Lock(), threading.Event()
        # One report at a time: the newest is the last, and no reader finds half of one.
        self._sending = threading.Lock()
        self._beat_at = datetime.now(UTC)
        self._came_by: float | None = None
        self._behind_since: float | None = None
        self._waits_since: float | None = None
        self._updated = time.monotonic()
        self._fields: dict[str, Any] = {
            "job": job,
            "instance": settings.installation_id,
            "started_at": datetime.fromtimestamp(self._tree.started_at, UTC),
            "pid": heartbeat.process_number(),
            "state": JobState.STARTING,
        }
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=5.0, config=PROMPT)
        self._thread = threading.Thread(target=self._beat, name="reporter", daemon=True)
        self._thread.start()

    def expect_batches(self, await_answer: Callable[[], None]) -> None:
        """Report a job that reads batches: with a lag, without a batch, it counts as stalled.

        `await_answer` returns when the JVM that works for this process has shown that it lives. Reports of the
        background thread wait for it, so that one that hangs has no heartbeat.
        """
        self._await_answer, self._reads_batches = await_answer, True

    def add_usage(self, elsewhere: Callable[[], tuple[float, int]]) -> None:
        """Add CPU seconds and resident bytes to those of this process; negative where they count for others."""
        self._elsewhere = elsewhere

    def update(self, **fields: Any) -> None:
        """Set fields of the report (names of `JobReport`) and publish it at once, without waiting for Kafka.

        From what changes follows `stalled_seconds`.
        """
        with self._lock:
            before = self._fields.get("batch_id")
            self._fields |= fields
            if self._fields["state"] is JobState.WAITING:
                self._waits_since = self._waits_since or time.monotonic()
            elif self._fields["state"] is not JobState.STARTING:  # between two waits a job starts anew
                self._waits_since = None
            self._updated = time.monotonic()
            if self._came_by is not None:
                self._came_by = time.monotonic()
            if not self._is_behind():
                self._behind_since = None
            elif self._behind_since is None or self._fields.get("batch_id") != before:
                self._behind_since = time.monotonic()
        self._send()

    def goes_on(self, within: float = 0.0) -> None:
        """Report that the job's own thread works. Silent for longer than `within` seconds, it counts as stalled."""
        self._came_by = time.monotonic() + within

    def report(self) -> JobReport:
        """The report as it would be written now."""
        with self._lock:
            fields = dict(self._fields)
            since = self._came_by if self._behind_since is None else self._behind_since
            if since is None and fields["state"] is JobState.STARTING:
                since = self._updated
            if since is not None:
                fields["stalled_seconds"] = max(0.0, round(time.monotonic() - since, 3))
            if self._waits_since is not None:
                fields["waiting_seconds"] = round(time.monotonic() - self._waits_since, 3)
        if self._beside and fields["state"] is JobState.RUNNING:
            fields["state"] = JobState.READY
        (cpu, rss), (more_cpu, more_rss) = self._tree.usage(), self._elsewhere()
        usage = {"cpu_seconds": round(cpu + more_cpu, 2), "rss_bytes": rss + more_rss}
        return JobReport(at=datetime.now(UTC), **usage, **fields)

    @property
    def leads(self) -> bool:
        """Return whether this is the process that works for the job, and not one beside it."""
        return not self._beside

    def lead(self) -> None:
        """From now on this process leads the job."""
        with self._sending:
            self._beside = False
        self._send()  # before the other heartbeat goes: without any it would be taken for hung
        heartbeat.end_beside(self._settings.state, self._fields["job"])

    def broker_time(self, timeout_seconds: float = 5.0) -> datetime | None:
        """Publish the report and return the time at which the broker appended it, UTC; None when it did not in time.

        This is a reading of the broker's clock: `job-metrics` carries append times. It is no sign of life: what is
        published has the time of the last one.
        """
        appended: list[Message] = []
        done = threading.Event()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                appended.append(message)
            done.set()

        self._send(delivered)
        deadline = time.monotonic() + timeout_seconds
        while not done.is_set() and time.monotonic() < deadline:
            self._writer.poll(0.05)
        if not appended:
            return None
        return EPOCH + timedelta(milliseconds=appended[0].timestamp()[1])

    def close(self, state: JobState = JobState.STOPPED, reason: str = "", cause: FailureCause | None = None) -> None:
        """Stop the thread, and publish `state` as the last word; waits up to 2 seconds for each."""
        self._stop.set()
        self._thread.join(_CLOSE_SECONDS)  # it may wait for an answer that does not come
        self.update(state=state, reason=reason, cause=cause)
        with contextlib.suppress(TransientError):
            self._writer.flush(_CLOSE_SECONDS)

    def _is_behind(self) -> bool:
        """Return whether a batch is due: a job that had nothing to read, or waited, does not count as hung."""
        runs = self._fields["state"] is JobState.RUNNING and not self._beside
        is_due = self._reads_batches or self._fields.get("batch_id") is not None
        return runs and is_due and self._fields.get("lag_records", 0) > 0

    def _beat(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self._await_answer()
            if not self._stop.is_set():
                self._send()

    def _send(self, delivered: Any = None) -> None:
        with self._sending:
            report = self.report()
            if delivered is None:
                heartbeat.beat(self._settings.state, report, beside=self._beside)
                self._beat_at = report.at
            else:  # ticks ask for the time, also while Spark hangs: it is no sign of life
                report = report.model_copy(update={"at": self._beat_at})
            if self._beside:
                return
            value, more = report.model_dump_json(exclude_none=True), {"on_delivery": delivered} if delivered else {}
            with contextlib.suppress(TransientError):
                self._writer.write(self._topic, value, report.job, partition=0, **more)


class _Tree:
    """The process of the caller and all below it: the JVM, and its workers.

    Who is below is asked each half minute, because that reads the whole process list of the machine; in the first
    minute, when the JVM comes, each time.
    """

    def __init__(self) -> None:
        self._top = psutil.Process()
        self._below: list[psutil.Process] = []
        self._began, self._looked_at = time.monotonic(), float("-inf")
        self.started_at = self._top.create_time()

    def usage(self) -> tuple[float, int]:
        """CPU seconds and resident bytes; what has ended is left out."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS or now - self._began < _YOUNG_SECONDS:
            with contextlib.suppress(psutil.Error):
                self._below, self._looked_at = self._top.children(recursive=True), now
        cpu, rss = 0.0, 0
        for process in (self._top, *self._below):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                cpu += times.user + times.system
                rss += process.memory_info().rss
        return round(cpu, 2), rss


_TAIL = 20_000


class ReportReader:
    """Follows `job-metrics`: each call of `latest` reads only what is new. For one thread."""

    def __init__(
        self,
        settings: Settings,
        take: Callable[[JobReport], None] | None = None,
        *,
        timeout_seconds: float = 5.0,
    ) -> None:
        """Begin with the last 20,000 reports of this installation; `take` gets each that is read, the oldest first."""
        self._take, self._own = take, settings.installation_id
        self._reader = TopicReader(settings, "reports", settings.names.job_metrics, timeout_seconds=timeout_seconds)
        self._position: int | None = None
        self._reports: dict[str, JobReport] = {}

    def latest(self) -> dict[str, JobReport]:
        """Return each job's last report in the topic's end, stopped jobs included. TransientError without Kafka."""
        first, end = (bound[0] for bound in self._reader.bounds([0]))
        if self._position is None or not first <= self._position <= end:
            self._position = max(first, end - _TAIL)
        for message in self._reader.records(0, self._position, end):
            self._position = (message.offset() or 0) + 1
            with contextlib.suppress(ValidationError):
                self._add(JobReport.model_validate_json(message.value() or b""))
        self._position = end  # compaction may have removed the records up to it
        return dict(self._reports)

    def close(self) -> None:
        """Leave Kafka."""
        self._reader.close()

    def _add(self, report: JobReport) -> None:
        if report.instance == self._own:
            self._reports[report.job] = report
            if self._take is not None:
                self._take(report)


def read_reports(settings: Settings) -> dict[str, JobReport]:
    """The latest report per job; see `ReportReader.latest`."""
    with contextlib.closing(ReportReader(settings)) as reader:
        return reader.latest()
