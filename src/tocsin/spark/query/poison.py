"""Records that end the query of a job whenever they are read: found, written down, and left out from then on.

Two failures at the same place, for a cause that is neither Kafka nor a disk, or ten that look like those, start a
search; so do three deaths in a row: a record may end the JVM or the process itself, which then reports nothing. Ranges
of records go through the same expressions once more, as batches, and what fails is divided until single records are
left. What is tried is written down first, so that the next process knows what the last one died of. An ingest writes
what it makes of them, since delivery is at least once anyway. A detector does not: what it makes of a part of its
events is no finding. So a record whose finding the sink refuses is not found; `tocsin.declare.model.sizes` bounds
findings.

A record is blamed if it fails twice while another one nearby, the witness, passes: a broker that refuses all, or was
ill for a minute, is no record's fault, nor is it a kill. What is left out stands in `<checkpoint>/set-aside.json`,
beside the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import NamedTuple

import structlog
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, Field
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.source import is_tick
from tocsin.platform import state_file
from tocsin.platform.failures import FailsOnAll, Unwritable, is_kafka, is_store, is_unwritable, refusal, root_cause
from tocsin.platform.kafka.client import is_recreated
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, as_json, partition_of, place_of
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.platform.storage.stored_path import ObjectPath, StoredPath
from tocsin.spark.query.work import Run
from tocsin.spark.session import read_topics

_FILE = "set-aside.json"
_FAILURES = 2
_DEATHS = 3
_PARTS = 10
"""A failing span is divided into so many: each level may cost the life of a process, which takes ten seconds to come
back, and later a minute; a thousand records have three levels of ten, and ten of two."""
_OUTAGES = 10
_CHUNK = 1_000
_SEARCHED = 100_000
_MOST = 1_000
_NEARBY = 1_000
_WITNESSES = 5
_LONGEST = 300
_NOT_ONE = "the query fails repeatedly, and not because of one record; see the log"

_DIED = "the process of the job died while it read this record"
_FATAL = ("java.lang.OutOfMemoryError", "java.lang.StackOverflowError")
_EXIT_SECONDS = 2.0
"""So long a JVM that has thrown one of these may take to exit. What is tried meanwhile would be blamed for it."""

log = structlog.get_logger()


Read = Callable[[Sequence[str]], DataFrame]
"""Makes a DataFrame of records, as Kafka gives them, of some topics."""


class SetAside(BaseModel, frozen=True):
    """A record that is not read any more, since `error` (one line) ended its query; found `at` that time, UTC."""

    topic: str
    partition: int
    offset: int
    error: str
    at: datetime

    @property
    def place(self) -> Place:
        """The partition of the topic."""
        return place_of(self.topic, self.partition)


class SuspectSpan(NamedTuple):
    """The records of one place with offsets from `start` up to, not including, `end`."""

    place: Place
    start: int
    end: int

    @property
    def name(self) -> str:
        """Name it, as in `events.logins/3:100-200`."""
        return f"{self.place}:{self.start}-{self.end}"

    def split(self) -> list[SuspectSpan]:
        """Divide it into equal parts."""
        size = -(-(self.end - self.start) // _PARTS)
        starts = range(self.start, self.end, size)
        return [self._replace(start=start, end=min(start + size, self.end)) for start in starts]


class _Kept(BaseModel):
    """The content of the file.

    Attributes:
        position: to which the counts belong.
        runs: a query was started, and nobody has seen its end.
        deaths: of processes in a row whose query nobody has seen end.
        ends: of the places when a search began: a search of the next process divides the same spans.
        trying: the name of the span that a search reads now; empty if none does.
        died_of: how many processes died while a search read a span, by its name.
    """

    position: Position = Field(default_factory=dict)
    failures: int = 0
    outages: int = 0
    runs: bool = False
    deaths: int = 0
    ends: Position = Field(default_factory=dict)
    trying: str = ""
    died_of: dict[str, int] = Field(default_factory=dict)
    records: list[SetAside] = Field(default_factory=list)
    topic_ids: dict[str, str] = Field(default_factory=dict)


def find_poison(span: SuspectSpan, failure_of: Callable[[SuspectSpan], str]) -> Iterator[tuple[SuspectSpan, str]]:
    """Yield each single record of `span` on which `failure_of` tells a failure ("" is none), with that."""
    error = failure_of(span)
    if error and span.end - span.start == 1:
        yield span, error
    elif error:
        for part in span.split():
            yield from find_poison(part, failure_of)


def chunks_of(span: SuspectSpan) -> Iterator[SuspectSpan]:
    """Yield `span`, as far as it is searched, in parts that become larger: what ends a query is likely near."""
    start, size, last = span.start, _CHUNK, min(span.end, span.start + _SEARCHED)
    while start < last:
        yield span._replace(start=start, end=min(start + size, last))
        start, size = start + size, 2 * size


class Poison:
    """The records that a job leaves out since they end its query. Raises a ValueError if their file is broken."""

    def __init__(self, folders: JobFolders) -> None:
        self._folder, self._disk = folders.stored, folders.local
        self._in_store = isinstance(self._folder, ObjectPath)
        self._state = _read(self._folder)
        self._failing: list[RuntimeError] = []

    @property
    def count(self) -> int:
        """Count of the records that were set aside."""
        return len(self._state.records)

    @property
    def sentence(self) -> str:
        """A sentence on what was set aside, to put before the reason of a job; "" for nothing."""
        records = self._state.records
        if not records:
            return ""
        last, what = records[-1], "1 record was" if len(records) == 1 else f"{len(records)} records were"
        return f"{what} set aside, the last is {last.topic}/{last.partition}/{last.offset} ({last.error[:100]}); "

    def count_failure(self, error: str, position: Position) -> bool:
        """Note that the query, at `position`, has failed with `error`; True when another try makes sense."""
        before = self._state if self._state.position == position else _Kept()
        is_outage = is_kafka(error) or (self._in_store and is_store(error)) or is_unwritable(error)
        failures, outages = before.failures + (not is_outage), before.outages + is_outage
        self._save(position=position, failures=failures, outages=outages)
        return not is_outage

    def begin(self, position: Position) -> None:
        """Note that the query has started at `position`; if nobody calls `end`, its process died."""
        before = self._state if self._state.position == position else _Kept()
        counts = before.model_dump(include={"failures", "outages", "deaths"})
        self._save(position=position, runs=True, **counts)

    def end(self) -> None:
        """Note that the query has ended, and its process and JVM have not."""
        if self._state.runs or self._state.deaths:
            self._save(runs=False, deaths=0)

    def fit(self, topic_ids: Mapping[str, str]) -> None:
        """Forget the records of topics that were recreated: what lies at their places now is another record."""
        known = self._state.topic_ids
        if known.items() >= topic_ids.items():
            return
        other = {topic for topic, id_ in topic_ids.items() if is_recreated(known.get(topic, ""), id_, {}, {})}
        records = [record for record in self._state.records if record.topic not in other]
        has_records = self.count > 0
        self._state = self._state.model_copy(update={"records": records, "topic_ids": {**known, **topic_ids}})
        if has_records:
            state_file.write(self._folder / _FILE, _Kept, self._state)

    def add(self, records: Sequence[SetAside]) -> None:
        """Write down `records` that were left out without ending the query; a thousand of them at most."""
        self._save(records=[*self._state.records, *records[: max(0, _MOST - self.count)]])

    def without(self, records: DataFrame) -> DataFrame:
        """Leave out those of `records`, as Kafka gives them, that were set aside."""
        places: dict[tuple[str, int], list[int]] = {}
        for record in self._state.records:
            places.setdefault((record.topic, record.partition), []).append(record.offset)
        bad = [
            (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").isin(offsets)
            for (topic, partition), offsets in places.items()
        ]
        return records.where(~reduce(lambda first, other: first | other, bad)) if bad else records

    def search(
        self, run: Run, position: Position, write: Callable[[Read], None], keep: Callable[[SetAside], None]
    ) -> None:
        """Find the records behind `position` that end the query, if it has failed there again and again.

        `write` does with what it reads, as a batch, what the query does. `keep` takes each record that was found before
        it is left out, perhaps twice.

        Raises:
            RuntimeError: no record is to blame; `FailsOnAll` where the first that was read fails.
            TransientError: Kafka went away, try again.
            Unwritable: the disk is full.
        """
        state, self._failing = self._count_death(position), []
        # What a record holds can stand in an error, so a sender can make it look like a lost broker or a full disk.
        is_due = state.failures >= _FAILURES or state.outages >= _OUTAGES or state.deaths >= _DEATHS
        if not is_due or state.position != position:
            return
        reason = "searching for the record that fails its query"
        counts = {"failures": state.failures, "outages": state.outages, "deaths": state.deaths}
        log.warning("search started", position=position, **counts)
        run.reporter.update(state=JobState.WAITING, reason=reason)
        self._save(ends=state.ends or run.topics.bounds()[1])
        found = self._find(run, position, lambda span: self._survive(run, span, position, write))
        if run.is_stopping:
            return
        for record in found:
            keep(record)
            log.error("record set aside", **record.model_dump(exclude={"at"}))
        # One more failure or death starts the next search; a restart before the first commit is none.
        again = {"failures": _FAILURES - 1, "deaths": min(state.deaths, _DEATHS - 1)}
        counts = again if found else dict.fromkeys(again, 0)
        self._save(records=[*state.records, *found], outages=0, ends={}, died_of={}, **counts)
        if not found and state.failures >= _FAILURES:
            raise (self._failing or [RuntimeError(_NOT_ONE)])[0]

    def _count_death(self, position: Position) -> _Kept:
        """Count the process before, if nobody has seen the end of its query, or of its search."""
        state = self._state
        if (state.runs or state.trying) and state.position == position:
            died_of = state.died_of
            if state.trying:
                died_of = died_of | {state.trying: died_of.get(state.trying, 0) + 1}
            self._save(runs=False, deaths=state.deaths + 1, trying="", died_of=died_of)
        elif state.position != position:
            self._state = _Kept(records=state.records)
        return self._state

    def _survive(self, run: Run, span: SuspectSpan, position: Position, write: Callable[[Read], None]) -> str:
        """Say why the records of `span` fail, without reading again what processes have died of."""
        if self._state.died_of.get(span.name, 0) >= (2 if span.end - span.start == 1 else 1):
            return _DIED
        self._save(trying=span.name)
        try:
            failure = self._failure(run, position, span, write)
        except (TransientError, Unwritable):
            self._save(trying="")
            raise
        if any(error in failure for error in _FATAL):
            run.wait(_EXIT_SECONDS)
            run.spark.sparkContext.getConf()  # raises if the JVM has exited, and then `trying` says of what
        self._save(trying="")
        return failure

    def _find(self, run: Run, position: Position, failure_of: Callable[[SuspectSpan], str]) -> list[SetAside]:
        """Find the records to blame in the first range that fails; none when no record passes."""
        nearby = self._nearby(run.topics, position)
        witness = next((span for span in nearby if not failure_of(span)), None)
        if witness is None and (self.count or len(nearby) > 1):
            return []
        suspects = self._suspects(run, position, failure_of)
        blamed = [(span, error) for span, _ in suspects if (error := failure_of(span))]
        if witness is not None and (error := failure_of(witness)):
            raise TransientError(f"the search for a record ended: no record passes: {error}")
        if witness is None:
            blamed = blamed[:1]  # a record that is alone on its topic has no witness, and may be blamed once
        now = datetime.now(UTC)
        return [
            SetAside(topic=topic, partition=partition, offset=span.start, error=error, at=now)
            for span, error in blamed
            for topic, partition in [partition_of(span.place)]
        ]

    def _nearby(self, topics: TopicSet, position: Position) -> list[SuspectSpan]:
        """List some single records around `position` that were not set aside, those that the query has read first."""
        (first, _), ends = topics.bounds(), self._state.ends
        before: list[SuspectSpan] = []
        after: list[SuspectSpan] = []
        for p, offset in position.items():
            start, end = max(offset, first.get(p, 0)), ends.get(p, 0)
            before += self._real(topics, SuspectSpan(p, max(first.get(p, 0), offset - _NEARBY), offset))[-_WITNESSES:]
            unread = self._real(topics, SuspectSpan(p, start, min(end, start + _NEARBY)))
            after += unread[:: -(len(unread) // _WITNESSES + 1)]  # what ends the query is likely the first of them
        return [*before, *after]

    def _real(self, topics: TopicSet, span: SuspectSpan) -> list[SuspectSpan]:
        """List the records of `span`, one by one, without ticks and those that were set aside: they pass anyway."""
        if span.start >= span.end:
            return []
        known = {record.offset for record in self._state.records if record.place == span.place}
        found = (message.offset() or 0 for message in topics.records(*span) if not is_tick(message.value() or b""))
        return [SuspectSpan(span.place, offset, offset + 1) for offset in found if offset not in known]

    def _suspects(
        self, run: Run, position: Position, failure_of: Callable[[SuspectSpan], str]
    ) -> list[tuple[SuspectSpan, str]]:
        """List the records that fail in the first range that does, as many as there is room for."""
        (first, _), ends = run.topics.bounds(), self._state.ends
        chunks = [
            chunk
            for p, offset in position.items()
            for chunk in chunks_of(SuspectSpan(p, max(offset, first.get(p, 0)), ends.get(p, 0)))
        ]
        for chunk in sorted(chunks, key=lambda span: span.start - position[span.place]):
            found = [] if run.is_stopping else list(find_poison(chunk, failure_of))
            if found:
                return found[: max(0, _MOST - self.count)]
        return []

    def _failure(self, run: Run, position: Position, span: SuspectSpan, write: Callable[[Read], None]) -> str:

        def read(topics: Sequence[str]) -> DataFrame:
            starts = {place: offset for place, offset in position.items() if partition_of(place)[0] in topics}
            ends = {place: offset if place != span.place else span.end for place, offset in starts.items()}
            starts |= {span.place: span.start} if span.place in starts else {}
            span_options = {
                "startingOffsets": as_json(starts),
                "endingOffsets": as_json(ends),
                "includeHeaders": "true",
            }
            return self.without(read_topics(run.spark.read, run.settings, run.job, topics, **span_options))

        try:
            write(read)
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)
            # Disk and broker are asked themselves: what a record holds can stand in the text.
            if refused := refusal(self._disk):
                raise Unwritable(refused) from error
            run.topics.bounds()
            if span.end - span.start == 1:
                self._failing.append(FailsOnAll(text, f"{span.place}/{span.start}"))
            return root_cause(error)[:_LONGEST]
        return ""

    def _save(self, **changes: object) -> None:
        state = self._state.model_copy(update=changes)
        # A version that runs beside this one may have set records aside meanwhile.
        known = {
            (record.topic, record.partition, record.offset): record
            for record in [*_read(self._folder).records, *state.records]
        }
        self._state = state.model_copy(update={"records": list(known.values())})
        state_file.write(self._folder / _FILE, _Kept, self._state)


def _read(folder: StoredPath) -> _Kept:
    try:
        return state_file.load(folder / _FILE, _Kept)
    except FileNotFoundError:
        return _Kept()
