"""Find how far back Kafka still holds all events of a source, by what has landed and by append times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from tocsin.declare.model.source import Source
from tocsin.history.landing_ledger import Entry, LandingLedger
from tocsin.history.places import end
from tocsin.platform.kafka.client import is_recreated
from tocsin.platform.kafka.reader import Offsets, TopicReader


@dataclass(frozen=True)
class KafkaReach:
    """The part of a source that can be read from Kafka.

    Kafka holds all events whose time is `since` (UTC) or later; None if nothing was ever removed. `first` is the first
    offset of each partition that is still there.
    """

    since: datetime | None = None
    first: Offsets = field(default_factory=dict)


def find_reach(topic: TopicReader, source: Source, ledger: LandingLedger) -> KafkaReach:
    """Find the reach of the events topic of `source`. TransientError if Kafka cannot be reached; a retry helps.

    An event is no further ahead of its append time than `max_ahead`, so append times bound what was removed. The ledger
    often knows better: which days were in the runs of landing that are not wholly in Kafka any more.
    """
    first, ends = topic.bounds()
    removed = [partition for partition, offset in first.items() if offset > 0]
    if not removed:
        return KafkaReach(None, first)
    now = datetime.now(UTC)
    since = max(topic.appended_at(p, first[p], ends[p]) or now for p in removed) + source.max_ahead
    landed = _landed_since(ledger, source, first)
    return KafkaReach(since if landed is None else min(since, landed), first)


def _landed_since(ledger: LandingLedger, source: Source, first: Offsets) -> datetime | None:
    """Find the end of the latest day of which something before `first` has landed; None if not all that has landed."""
    gone, runs = _generations(ledger.entries)
    landed = {partition: span.to_offset for partition, span in runs[-1].partitions.items()} if runs else {}
    if not runs or any(landed.get(partition, 0) < offset for partition, offset in first.items()):
        return None
    lost = {file.day for entry in gone for file in entry.files}
    for entry in runs:
        cut = {p for p, span in entry.partitions.items() if span.from_offset < first.get(p, 0)}
        lost |= {file.day for file in entry.files if any(file.rows.get(partition) for partition in cut)}
    if any(span.from_offset > 0 for span in runs[0].partitions.values()):  # what came before its first run is unknown
        lost.add((runs[0].began + source.max_ahead).date())
    return end(max(lost, default=date(1970, 1, 1)))


def _generations(entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Tell the runs that read an earlier topic of the same name, which was recreated, from those that read this one."""
    gone: list[Entry] = []
    runs: list[Entry] = []
    ends: Offsets = {}
    topic_id = ""
    for entry in entries:
        if entry.topic is None:
            continue
        begins = {partition: span.from_offset for partition, span in entry.partitions.items()}
        if is_recreated(topic_id, entry.topic_id, {p: end for p, end in ends.items() if p in begins}, begins):
            gone, runs, ends = [*gone, *runs], [], {}
        runs.append(entry)
        topic_id = entry.topic_id or topic_id
        ends |= {partition: span.to_offset for partition, span in entry.partitions.items()}
    return gone, runs
