"""Gather the evidence of an alert from Kafka, beside the notifier, which waits for it a moment and no longer.

Of each source the latest records of the finding's window are read, and the latest before it: RECORDS each, for
SECONDS at most. What is read counts, so a busy topic gives a short look-back; the evidence says how far it reaches.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog

from tocsin.alerts.evidence.alert_evidence import (
    AlertEvidence,
    SourceEvidence,
    UnusualColumn,
    ValueShare,
    store_evidence,
)
from tocsin.alerts.evidence.event_search import is_about, lacking_columns
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.finding import MAX_EVIDENCE
from tocsin.declare.model.names import NOTIFIER
from tocsin.declare.model.sizes import shortened
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.ingest.replay.recorded import parse_event
from tocsin.platform.kafka.reader import Offsets, TopicReader

RECORDS = 20_000
SECONDS = 2.0
PATIENCE_SECONDS, URGENT_PATIENCE_SECONDS = 1.5, 0.6
"""So long a message waits for its evidence."""
STORED_BYTES = 65_536
_COMPARED = 2_000  # events of the entity in the window, and as many before it
_WAITING = 20
_SOURCES = 3
_LONGEST_TEXT = 200
_AWAY_SECONDS = 10.0  # after Kafka was away, or slow, no message waits for so long
_INSTANT = timedelta(microseconds=1)

FEW_VALUES, LEAST_BEFORE, LEAST_DIFFERENCE, LEAST_GROWTH = 20, 10, 0.2, 0.05
"""A column with more values in the window tells nothing; fewer events before it are no habit; less is chance."""
_SHOWN_COLUMNS, _SHOWN_VALUES = 4, 3

_log = structlog.get_logger()


@dataclass(frozen=True)
class _Request:
    details: AlertDetails
    gathered: Future[AlertEvidence] = field(default_factory=Future)


class EvidenceGatherer:
    """Gathers evidence in a thread of its own, which ends with the process, and stores what it has gathered."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._requests: queue.Queue[_Request] = queue.Queue(_WAITING)
        self._readers: dict[str, TopicReader] = {}
        self._latest: dict[str, AlertEvidence] = {}  # by finding; replaced as a whole, for another thread reads it
        self._away_until = 0.0
        threading.Thread(target=self._work, name="evidence", daemon=True).start()

    def enrich(self, details: AlertDetails) -> AlertDetails:
        """Return `details` with evidence about its highest finding, or with a note why there is none yet.

        What comes too late for this message is stored for the next one, and for the page.
        """
        finding = details.highest.finding
        for known in (details.evidence, self._latest.get(finding.finding_id)):
            if known is not None and known.finding_id == finding.finding_id:
                return details.model_copy(update={"evidence": known})
        request = _Request(details)
        waits = time.monotonic() >= self._away_until
        patience = URGENT_PATIENCE_SECONDS if finding.level == "urgent" else PATIENCE_SECONDS
        try:
            self._requests.put_nowait(request)
            evidence = request.gathered.result(patience if waits else 0)
        except (queue.Full, TimeoutError):
            if waits:  # one that did not wait says nothing of Kafka
                self._away_until = time.monotonic() + _AWAY_SECONDS
            note = "they were not read from Kafka in time; the page of the alert, and its next message, may have them"
            evidence = AlertEvidence(finding_id=finding.finding_id, note=note)
        return details.model_copy(update={"evidence": evidence})

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            details = request.details
            evidence = self._gather(details)
            request.gathered.set_result(evidence)
            if evidence.note:
                continue
            # For the message to the next recipient, which may leave before it is stored.
            latest = [*self._latest.items(), (evidence.finding_id, evidence)]
            self._latest = dict(latest[-_WAITING:])
            try:
                with self._database.write() as connection:
                    store_evidence(connection, details.alert.id, evidence, datetime.now(UTC))
            except Exception as error:  # the thread goes on: there is no other
                _log.warning("evidence not stored", alert=details.alert.id, error=str(error))

    def _gather(self, details: AlertDetails) -> AlertEvidence:
        try:
            return gather(self._settings, details, self._reader)
        except (TocsinError, OSError) as error:
            note = str(error)
            if isinstance(error, TransientError):
                self._away_until = time.monotonic() + _AWAY_SECONDS
        except Exception as error:
            # The message leaves without it: nothing that is only evidence may keep people from the alert.
            _log.exception("evidence failed", alert=details.alert.id)
            note = f"{type(error).__name__}: {error}"
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        return AlertEvidence(finding_id=details.highest.finding.finding_id, note=note)

    def _reader(self, topic: str) -> TopicReader:
        # A connection that is open saves a tenth of a second.
        if topic not in self._readers:
            self._readers[topic] = TopicReader(self._settings, NOTIFIER, topic, timeout_seconds=SECONDS / 2)
        return self._readers[topic]


def gather(settings: Settings, details: AlertDetails, reader: Callable[[str], TopicReader]) -> AlertEvidence:
    """Gather the evidence of an alert; `reader` opens a topic.

    Raises:
        ConfigError: its detector is not declared, or cannot be read.
        TransientError: Kafka cannot be reached; a retry helps.
    """
    catalog, deadline = read_catalog(settings.project), time.monotonic() + SECONDS
    sources = catalog.sources_of(catalog.detector(details.alert.detector))[:_SOURCES]
    found = [
        _of_source(source, details, partial(reader, settings.names.events(source.name)), deadline) for source in sources
    ]
    return _bounded(AlertEvidence(finding_id=details.highest.finding.finding_id, sources=found))


def _of_source(
    source: Source, details: AlertDetails, reader: Callable[[], TopicReader], deadline: float
) -> SourceEvidence:
    finding = details.highest.finding
    if lacking := lacking_columns(source, finding.entity):
        return SourceEvidence(source=source.name, note=lacking)
    written = finding.detected_at or details.highest.first_detected_at
    last = finding.event_time_max or written
    start, end = finding.window_start or last, finding.window_end or last + _INSTANT
    topic = reader()
    first, _ = topic.bounds()
    starts = topic.since(start - source.max_ahead)
    ends = topic.since(max(written, end + source.lateness))
    share = RECORDS // max(1, len(ends))
    from_end = {partition: max(starts[partition], offset - share) for partition, offset in ends.items()}
    events = _Events(source, finding.entity, deadline)
    events.read(topic, from_end, ends)
    is_cut = from_end != starts and (events.earliest is None or events.earliest >= start)
    events.read(topic, {p: max(first[p], offset - share) for p, offset in starts.items()}, starts)
    rows = sorted((row for row in events.rows if row["event_time"] < end), key=lambda row: row["event_time"])
    window = [row for row in rows if row["event_time"] >= start]
    before = [row for row in rows if row["event_time"] < start]
    notes = ["the time for reading was over before all was read"] if events.is_late else []
    if is_cut:
        notes.append(f"of the window only the latest {RECORDS:,} records of all entities were read")
    shown = window if window and finding.window_start is not None else rows
    return SourceEvidence(
        source=source.name,
        count=len(window),
        events=[_sample(row) for row in shown[-MAX_EVIDENCE:]],
        before=len(before),
        since=before[0]["event_time"] if before else None,
        unusual=unusual_columns([name for name in source.columns if name not in finding.entity], window, before),
        note="; ".join(notes),
    )


class _Events:
    """The events about one entity that were read, each once; of very many the latest of each reading."""

    def __init__(self, source: Source, entity: Mapping[str, str], deadline: float) -> None:
        self._columns = [name for name in source.columns if name != source.event_time]
        self._entity, self._deadline = entity, deadline
        self._known: set[tuple[str, int]] = set()
        self.rows: list[dict[str, Any]] = []
        self.earliest: datetime | None = None
        self.is_late = False

    def read(self, topic: TopicReader, starts: Offsets, ends: Offsets) -> None:
        latest: deque[dict[str, Any]] = deque(maxlen=_COMPARED)
        for message in topic.read(starts, ends):
            if time.monotonic() > self._deadline:
                self.is_late = True
                break
            event = parse_event(message)
            if event is None:
                continue
            self.earliest = event.time if self.earliest is None else min(event.time, self.earliest)
            if not is_about(event.values, self._entity):
                continue
            if (place := (event.origin, event.values["raw_offset"])) not in self._known:
                self._known.add(place)
                values = {name: _short(event.values.get(name)) for name in self._columns}
                latest.append(values | {"event_time": event.time})
        self.rows += latest


def unusual_columns(
    columns: Iterable[str], window: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[UnusualColumn]:
    """Find the columns of the events in the `window` whose values differ most from those `before`, largest first.

    The measure is the total variation distance of the shares. With fewer than LEAST_BEFORE events before, the columns
    where one value has most of the events; what is usual is then not known.
    """
    known = len(before) >= LEAST_BEFORE
    found = [_compare(name, window, before if known else []) for name in columns] if window else []
    found = [column for column in found if column.values and (not known or column.difference >= LEAST_DIFFERENCE)]
    return sorted(found, key=lambda column: -column.difference)[:_SHOWN_COLUMNS]


def _compare(name: str, window: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> UnusualColumn:
    now, usual = (Counter(_text(row.get(name)) for row in rows) for rows in (window, before))
    if len(now) > FEW_VALUES or set(now) == {_text(None)} == set(usual) | {_text(None)}:
        return UnusualColumn(column=name, difference=0, values=[])
    shares = {value: (now[value] / len(window), usual[value] / max(1, len(before))) for value in {*now, *usual}}
    least = LEAST_GROWTH if before else 0.5
    grown = sorted((used - share, value) for value, (share, used) in shares.items() if share - used >= least)
    values = [
        ValueShare(value=value[:_LONGEST_TEXT], share=shares[value][0], usual=shares[value][1] if before else None)
        for _, value in grown[:_SHOWN_VALUES]
    ]
    difference = sum(abs(share - used) for share, used in shares.values()) / 2 if before else 0
    return UnusualColumn(column=name, difference=difference, values=values)


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text.encode("utf-8", "backslashreplace").decode()  # half a character, which no database takes


def _text(value: Any) -> str:
    return "(none)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in row.items() if value is not None}
    cut = {name: value[:_LONGEST_TEXT] if isinstance(value, str) else value for name, value in values.items()}
    return cut | {"event_time": row["event_time"].isoformat(timespec="milliseconds")}


def _bounded(evidence: AlertEvidence) -> AlertEvidence:
    while len(evidence.model_dump_json().encode()) > STORED_BYTES:
        fullest = max(evidence.sources, key=lambda source: len(source.events))
        fewer = fullest.model_copy(update={"events": fullest.events[1:]})
        evidence = evidence.model_copy(
            update={"sources": [fewer if source is fullest else source for source in evidence.sources]}
        )
    return evidence
