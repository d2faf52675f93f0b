"""Records of the findings topic: as findings, or put aside with their reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from sqlalchemy import Connection, insert, select

from tocsin.alerts.finding_merging import faults_of
from tocsin.alerts.store.schema import invalid_findings
from tocsin.declare.model.errors import InvalidEvent
from tocsin.declare.model.finding import Finding
from tocsin.platform.kafka.reader import appended_at

_log = structlog.get_logger()
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
