"""Pass findings on to the detectors that read them: an event for each level that a finding has reached, and ticks.

The events of one finding and level are the same whenever they are written: who reads them drops repeats, so at least
once is enough here. What changes with later versions of a finding, such as its score, is not in them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from sqlalchemy import Connection, insert, select

from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.finding_merging import faults_of
from tocsin.alerts.store.schema import invalid_findings
from tocsin.declare.model.detector import FINDINGS_OF
from tocsin.declare.model.errors import InvalidEvent, TransientError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.names import detector_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.model.source import tick_value
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import appended_at
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.reporter import ReportReader
from tocsin.platform.kafka.retry import Backoff

_REMEMBERED = 20_000
_MOST_WAITING = 20_000
_log = structlog.get_logger()
_TIMEOUT = 5.0
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
_LOOK_SECONDS = 2.0


class FindingFeed:
    """Writes the events topics of findings. For one thread."""

    def __init__(self, settings: Settings, facts: Callable[[], Mapping[str, DetectorFacts]]) -> None:
        self._settings, self._facts = settings, facts
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=_TIMEOUT, config={"linger.ms": 0})
        self._reports: ReportReader | None = None
        self._written: set[tuple[str, str]] = set()
        self._ticked: dict[str, datetime] = {}
        self._topics, self._looked_at = dict[str, str](), 0.0

    def pass_on(self, records: Iterable[FindingRecord]) -> None:
        """Write what follows from `records`, and wait until Kafka has it; TransientError while it cannot be reached."""
        topics = self._read_topics()
        if not topics:
            return
        facts, written = self._facts(), self._written.copy() if len(self._written) < _REMEMBERED else set()
        for finding in _readable(records):
            if finding.detector in topics:
                levels = reached_levels(finding, facts.get(finding.detector))
                for level in (level for level in levels if (finding.finding_id, level) not in written):
                    self._writer.write(topics[finding.detector], json.dumps(event_of(finding, level)))
                    written.add((finding.finding_id, level))
        self._writer.flush()
        self._written = written  # not before Kafka has them: a retry writes them all again

    def tick(self, complete_until: datetime | None) -> None:
        """Write how far each detector has got, as far as all that it had found by then has been passed on.

        All that was appended to the topic of findings before `complete_until`, UTC, has been. Errors as of `pass_on`.
        """
        topics = self._read_topics()
        if not topics or complete_until is None:
            return
        self._reports = self._reports or ReportReader(self._settings)
        reports = self._reports.latest()
        for detector, topic in topics.items():
            report = reports.get(detector_job(detector))
            if report is None or report.watermark is None or report.at > complete_until:
                continue
            if report.watermark > self._ticked.get(detector, datetime.min.replace(tzinfo=report.watermark.tzinfo)):
                self._writer.write(topic, tick_value(report.watermark))
                self._ticked[detector] = report.watermark
        self._writer.flush()

    def _read_topics(self) -> dict[str, str]:
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            start = self._settings.names.events(FINDINGS_OF)
            # Not what is declared: a broken file stops no job, and a topic still to be made must not hold up alerts.
            there = sorted(self._writer.topics())
            self._topics = {topic.removeprefix(start): topic for topic in there if topic.startswith(start)}
            self._looked_at = time.monotonic()
        return self._topics


class WaitingFindings:
    """Findings that wait while Kafka takes none of them, so that alerts go on; `trouble` says why. For one thread."""

    def __init__(self, feed: FindingFeed) -> None:
        self._feed, self._records = feed, list[FindingRecord]()
        self.trouble, self._backoff = "", Backoff(_FIRST_SECONDS, _LONGEST_SECONDS)

    @property
    def is_full(self) -> bool:
        """Return whether so many wait that no more may be read."""
        return len(self._records) >= _MOST_WAITING

    def add(self, records: Iterable[FindingRecord]) -> None:
        """Pass these on too, from the next time on."""
        self._records += records

    def pass_on(self) -> bool:
        """Pass on what waits, unless that has failed a moment ago; True when nothing waits."""
        if self._records and self._try(lambda: self._feed.pass_on(self._records)):
            self._records = []
        return not self._records

    def tick(self, complete_until: datetime | None) -> None:
        """Write ticks as `FindingFeed.tick` does, unless something waits before them."""
        if not self._records:
            self._try(lambda: self._feed.tick(complete_until))

    def _try(self, write: Callable[[], None]) -> bool:
        if not self._backoff.is_due:
            return False
        try:
            write()
        except TransientError as error:
            if not self.trouble:
                _log.warning("findings wait for the detectors that read them", reason=str(error))
            self.trouble = str(error)
            self._backoff.failed()
            return False
        self.trouble = ""
        self._backoff.reset()
        return True


def reached_levels(finding: Finding, facts: DetectorFacts | None) -> list[str]:
    """List the levels that a finding has passed: its own, and a lower one that its detector declares.

    A score may jump over the lower limit, and a topic that is compacted forgets that it was below the higher one; so
    who reads again, from wherever, finds the same.
    """
    has_both = finding.level == "urgent" and facts is not None and facts.email_limit is not None
    return ["email", "urgent"] if has_both else [finding.level]


def event_of(finding: Finding, level: str) -> dict[str, object]:
    """Make the record of the events topic that says that `finding` has reached `level`."""
    times = {
        "event_time": finding.moment, "ingested_at": finding.detected_at,
        "window_start": finding.window_start, "window_end": finding.window_end,
    }  # fmt: skip
    return {
        **{"raw_topic": finding.finding_id, "raw_partition": ("email", "urgent").index(level), "raw_offset": 0},
        **{name: f"{time:%Y-%m-%dT%H:%M:%S.%fZ}" for name, time in times.items() if time is not None},
        **{"source": FINDINGS_OF + finding.detector, "schema_version": 1},
        **{"finding_id": finding.finding_id, "detector": finding.detector, "level": level},
        **finding.entity,
    }


def _readable(records: Iterable[FindingRecord]) -> Iterator[Finding]:
    for record in records:
        try:
            yield read_record(record)
        except InvalidEvent:  # the indexer puts it aside
            continue


MAX_KEPT_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class FindingRecord:
    """A record as Kafka delivered it; `appended_at` is its time, UTC."""

    topic: str
    partition: int
    offset: int
    appended_at: datetime
    value: bytes | None


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A record that cannot be used, and why."""

    record: FindingRecord
    reasons: tuple[str, ...]


def record_of(message: Message) -> FindingRecord:
    """Take what is used of `message`; a broker that dates no records leaves the time of now."""
    is_dated = message.timestamp()[0] != TIMESTAMP_NOT_AVAILABLE
    return FindingRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        appended_at=appended_at(message) if is_dated else datetime.now(UTC),
        value=message.value(),
    )


def read_record(record: FindingRecord) -> Finding:
    """The finding in `record`, detected when it was appended.

    Raises:
        InvalidEvent: the record is no finding, or one that no table can hold; a retry does not help.
    """
    place = (record.topic, record.partition, record.offset)
    finding = Finding.from_record(record.value, *place)
    finding = finding.model_copy(update={"detected_at": record.appended_at})
    faults = faults_of(finding)
    if faults:
        raise InvalidEvent(faults, *place)
    return finding


def read_or_reject(record: FindingRecord) -> Finding | Rejected:
    """The finding in `record`, or why there is none."""
    try:
        return read_record(record)
    except InvalidEvent as error:
        _log.warning("record is no finding", error=str(error)[:500])
        return Rejected(record=record, reasons=error.reasons)


def put_aside(connection: Connection, rejected: Iterable[Rejected], now: datetime) -> None:
    """Store records that are no findings: reasons, origin, and 64 KiB of each at most. A repetition changes nothing."""
    for rejection in rejected:
        record, value = rejection.record, rejection.record.value or b""
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        if connection.execute(select(invalid_findings.c.size).filter_by(**place)).first() is None:
            values = {"reasons": list(rejection.reasons), "value": value[:MAX_KEPT_BYTES], "size": len(value)}
            connection.execute(insert(invalid_findings).values(**place, **values, seen_at=now))
