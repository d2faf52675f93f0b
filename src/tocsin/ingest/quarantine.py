"""Records that could not be used: list them, look at one, and feed them through the stream again.

A replay writes the original bytes back to the raw topic. Headers carry the append time and the identity of the
original, so that replaying twice gives one event. The record is judged by the rules of now; if it fails again, it comes
back with a higher number of replays.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.ingest.parsing_rules import INGESTED_AT_HEADER, ORIGIN_HEADER, REPLAYS_HEADER, reason_class, rule_parts
from tocsin.ingest.quarantined_record import QuarantinedRecord, read_record
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.quality.suites.suite_catalog import read_row_rules

_OURS = (ORIGIN_HEADER, INGESTED_AT_HEADER, REPLAYS_HEADER)

_READER = "reader"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Choice of quarantined records.

    Attributes:
        reason: a reason (`missing:user_id`) or a class of reasons (`missing`); any when None.
    """

    reason: str | None = None
    since: datetime | None = None
    limit: int = 100

    def takes(self, record: QuarantinedRecord) -> bool:
        """Return whether `record` has the reason and the time."""
        fits = self.reason is None or any(self.reason in (reason, reason_class(reason)) for reason in record.reasons)
        return fits and (self.since is None or record.quarantined_at >= self.since)


@dataclass
class ReplayResult:
    """The result of a replay: ids written back to the raw topic, and those that were not, each with the reason.

    `changed` are parts of the rules that have changed since at least one of the replayed records was quarantined, see
    `tocsin.ingest.parsing_rules.rule_parts`. Empty: the same rules judge again, and a record at fault will come back.
    """

    replayed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class QuarantineCount:
    """The newest records of a selection up to its limit, and how many there are in all, the limit aside.

    `reasons` are those of all, the most frequent first.
    """

    newest: list[QuarantinedRecord]
    total: int
    reasons: list[tuple[str, int]]


def list_quarantined(settings: Settings, source: Source, selection: Selection) -> list[QuarantinedRecord]:
    """List the records of `source` in quarantine that `selection` takes, newest first.

    A record that was replayed stays in the list: quarantine is a log, cleared by its retention (30 days).
    TransientError if Kafka cannot be reached; a retry helps.
    """
    return list(itertools.islice(all_quarantined(settings, source, selection), selection.limit))


def all_quarantined(settings: Settings, source: Source, selection: Selection) -> Iterator[QuarantinedRecord]:
    """Yield the records that `list_quarantined` gives and those beyond the limit, newest first; errors as for it."""
    with TopicReader(settings, _READER, settings.names.quarantine(source.name)) as reader:
        for message in reader.newest_first():
            record = read_record(source.name, message)
            if record is None:
                continue
            if selection.since and record.quarantined_at < selection.since:
                return
            if selection.takes(record):
                yield record


def newest_quarantined(settings: Settings, sources: Iterable[Source], selection: Selection) -> list[QuarantinedRecord]:
    """List the newest records of all `sources` that `selection` takes; errors as for `list_quarantined`."""
    found = [record for source in sources for record in list_quarantined(settings, source, selection)]
    return _newest(found, selection)


def count_quarantined(settings: Settings, sources: Iterable[Source], selection: Selection) -> QuarantineCount:
    """Count all records of `sources` that `selection` takes, beyond its limit too; errors as for `list_quarantined`."""
    found: list[QuarantinedRecord] = []
    reasons: Counter[str] = Counter()
    total = 0
    for source in sources:
        for number, record in enumerate(all_quarantined(settings, source, selection)):
            total += 1
            reasons.update(record.reasons)
            if number < selection.limit:
                found.append(record)
    return QuarantineCount(
        _newest(found, selection), total, sorted(reasons.items(), key=lambda reason: (-reason[1], reason[0]))
    )


def _newest(found: Iterable[QuarantinedRecord], selection: Selection) -> list[QuarantinedRecord]:
    return sorted(found, key=lambda record: record.quarantined_at, reverse=True)[: selection.limit]


def find_quarantined(settings: Settings, source: Source, record_id: str) -> QuarantinedRecord:
    """Find the record with the id `record_id`; ConfigError if there is none, and errors as for `list_quarantined`."""
    name, _, place = record_id.partition("/")
    partition, _, offset = place.partition("/")
    topic = settings.names.quarantine(source.name)
    if name != source.name or not (partition.isdecimal() and offset.isdecimal()):
        raise ConfigError.one(record_id, f"is not the id of a quarantined record, such as {source.name}/0/42")
    with TopicReader(settings, _READER, topic) as reader:
        message = reader.record(int(partition), int(offset))
    record = None if message is None else read_record(source.name, message)
    if record is None:
        raise ConfigError.one(record_id, "is not in quarantine; records are kept for 30 days")
    return record


def replay(settings: Settings, source: Source, records: Iterable[QuarantinedRecord]) -> ReplayResult:
    """Write the original bytes of `records` back to the raw topic, oldest first.

    A record of which quarantine keeps only the beginning is read from the raw topic, while that still has it.

    Raises:
        ConfigError: what is expected of the source's events has faults; a retry does not help.
        TransientError: Kafka cannot be reached, or did not take all; a retry helps, and repeats do no harm.
    """
    result, now = ReplayResult(), rule_parts(source, read_row_rules(settings.project, source))
    with RecordWriter(settings, RAW_BYTES) as writer:
        for record in sorted(records, key=lambda record: record.quarantined_at):
            raw = _whole(settings, record)
            skipped = raw if isinstance(raw, str) else _write_back(writer, record, raw)
            if skipped:
                result.skipped[record.id] = skipped
                continue
            result.replayed.append(record.id)
            result.changed |= changed_rules(record, now)
    return result


def replay_all(settings: Settings, catalog: Catalog, records: Sequence[QuarantinedRecord]) -> ReplayResult:
    """Replay records of several sources, each by the rules of its own; errors as for `replay`."""
    whole = ReplayResult()
    for name in sorted({record.source for record in records}):
        own = replay(settings, catalog.source(name), [record for record in records if record.source == name])
        whole.replayed += own.replayed
        whole.skipped |= own.skipped
        whole.changed |= own.changed
    return whole


def changed_rules(record: QuarantinedRecord, now: dict[str, str]) -> set[str]:
    """Name the parts of the rules that have changed since `record` was quarantined; `now` is from `rule_parts`."""
    return {part for part, digest in now.items() if record.rules.get(part) != digest}


@dataclass(frozen=True)
class _Raw:
    payload: bytes
    key: bytes | None
    headers: Sequence[tuple[str, str | bytes | None]]


def _whole(settings: Settings, record: QuarantinedRecord) -> _Raw | str:
    if record.payload is None:
        return "has no value, so there is nothing to replay"
    if not record.cut:
        return _Raw(record.payload, record.raw_key, [(header.key, header.value) for header in record.headers])
    origin = record.origin
    with TopicReader(settings, _READER, origin.topic) as reader:
        message = reader.record(origin.partition, origin.offset)
    value, key = (None, None) if message is None else (message.value(), message.key())
    if message is None or value is None or _sha256(value) != record.payload_sha256 or not _is_key_of(record, key):
        what = f"only the beginning of its {' and '.join(record.cut)} was kept"
        return f"{what}, and {origin.topic} no longer has the rest"
    return _Raw(value, key, cast("list[tuple[str, str | bytes | None]]", message.headers() or []))


def _is_key_of(record: QuarantinedRecord, key: bytes | None) -> bool:
    """Return whether `key` is the whole key of the raw record; records of earlier versions kept it whole."""
    expected = record.raw_key_sha256
    return key == record.raw_key if expected is None else key is not None and _sha256(key) == expected


def _sha256(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _write_back(writer: RecordWriter, record: QuarantinedRecord, raw: _Raw) -> str:
    """Write `raw` to where `record` came from: same topic, partition and key. "", or why Kafka will never take it."""
    origin = record.origin
    headers = [(name, value) for name, value in raw.headers if name not in _OURS]
    headers += [
        (ORIGIN_HEADER, str(origin)),
        (INGESTED_AT_HEADER, origin.timestamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
        (REPLAYS_HEADER, str(record.replays + 1)),
    ]
    if writer.write(origin.topic, raw.payload, raw.key, partition=origin.partition, headers=headers):
        return ""
    return f"with the headers of a replay it is longer than {RAW_BYTES:,} bytes"
