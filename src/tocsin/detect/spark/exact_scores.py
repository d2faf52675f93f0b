"""Write the true scores of large bursts: the stream gives lower bounds above the highest limit (ADR 0005)."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import EPOCH, MICROSECOND, Windowed, closed_before, longest
from tocsin.declare.model.finding import Origin
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import ABOVE
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.platform import state_file
from tocsin.platform.failures import in_a_line
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.events import IDENTITY, parse_events
from tocsin.spark.query.work import Run
from tocsin.spark.session import findings_sink, kafka_options
from tocsin.spark.tables.spark.joined_tables import JoinedTables

_ATTEMPTS = 3

log = structlog.get_logger()


class OpenWindows(BaseModel, frozen=True):
    """Windows with lower bounds that nobody has made exact: those that begin from `start` and end by `end`, in UTC."""

    version: str
    start: datetime
    end: datetime

    def joined(self, other: OpenWindows | None) -> OpenWindows:
        """Return the span of both."""
        if other is None:
            return self
        return self.model_copy(update={"start": min(self.start, other.start), "end": max(self.end, other.end)})

    def split(self, watermark: datetime, spec: Windowed) -> tuple[OpenWindows | None, OpenWindows | None]:
        """Return the windows of `spec` that are closed at `watermark`, and those that are not."""
        if self.end <= watermark:
            return self, None
        later = closed_before(spec, watermark)
        if self.start >= later:
            return None, self
        return self.model_copy(update={"end": watermark}), self.model_copy(update={"start": later})


class ExactScores:
    """Replaces a detector's lower bounds by exact scores, once their windows have closed.

    A batch beside the query does it, by the code of a backfill over the events that Kafka holds, for those findings
    alone. What is open is kept in a file, so a restart in between loses nothing.
    """

    def __init__(self, settings: Settings, spec: DetectorSpec, sources: Sequence[Source], folder: StoredPath) -> None:
        self._settings, self._spec, self._sources = settings, spec, sources
        self._path = folder / "lower-bounds.json"
        self._used: dict[str, frozenset[str]] = {}
        self._tables: JoinedTables | None = None
        self._text = b""
        self._open: OpenWindows | None = None
        self._watermark = EPOCH
        self._thread: threading.Thread | None = None
        self._computed: OpenWindows | None = None
        self._failed = 0

    def begin(
        self,
        used: dict[str, frozenset[str]],
        tables: JoinedTables | None,
        text: bytes,
        unnoted_from: datetime | None = None,
    ) -> None:
        """Go on with what the file says is open, now that no other process writes it.

        `used` are the columns that the detector uses, by source. `text` is its file in the version that runs; another
        may lie there by now. Windows that begin from `unnoted_from` on may be open though the file does not say so: the
        process before was killed behind the end of a batch and before `note_batch`.
        """
        self._used, self._tables, self._text = used, tables, text
        if self._open is None and self._thread is None:
            # Not of another version: its windows are not ours, and the nightly backfill does them.
            known = state_file.read(self._path, OpenWindows, None)
            self._open = known if known is not None and known.version == self._spec.version else None
            if unnoted_from is not None:
                end = datetime.now(UTC) + longest(self._spec)
                span = OpenWindows(version=self._spec.version, start=min(unnoted_from, end), end=end)
                self._keep(span.joined(self._open))

    def note_batch(self, figures: dict[str, Any], watermark: datetime | None) -> None:
        """Take the edges of what was above the highest limit out of the `figures` of a batch that has ended."""
        start, end = (figures.pop(name, None) for name in ABOVE)
        if start is not None and end is not None:
            edges = {"start": EPOCH + start * MICROSECOND, "end": EPOCH + end * MICROSECOND}
            self._keep(OpenWindows(version=self._spec.version, **edges).joined(self._open))
        self._watermark = watermark or self._watermark

    def look(self, run: Run) -> None:
        """Begin with the windows that have closed; one batch at a time."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread.join()
            self._thread = None
            self._end()
        if self._thread is not None or self._open is None or not run.reporter.leads:
            return
        closed, left = self._open.split(self._watermark, self._spec)
        if closed is None:
            return
        self._open, self._computed = left, closed  # the file names both until it is done
        self._thread = threading.Thread(target=self._compute, args=(run.spark, closed), name="exact", daemon=True)
        self._thread.start()

    def _compute(self, spark: SparkSession, closed: OpenWindows) -> None:
        try:
            count = self._write(spark, closed)
        except Exception as error:  # whatever it is, the stream goes on, and the nightly backfill has the last word
            self._failed += 1
            log.warning("exact scores failed", attempt=self._failed, error=in_a_line(error))
        else:
            self._failed = 0
            if count:
                log.info("exact scores written", findings=count, start=str(closed.start), end=str(closed.end))

    def _end(self) -> None:
        computed, self._computed = self._computed, None
        again = computed is not None and 0 < self._failed < _ATTEMPTS
        self._keep(computed.joined(self._open) if again and computed is not None else self._open)
        self._failed = self._failed if again else 0

    def _keep(self, open_: OpenWindows | None) -> None:
        self._open = open_
        unwritten = open_ if self._computed is None else self._computed.joined(open_)
        if unwritten is None:
            self._path.unlink(missing_ok=True)
        else:
            state_file.write(self._path, OpenWindows, unwritten)

    def _write(self, spark: SparkSession, closed: OpenWindows) -> int:
        end = closed_before(self._spec, closed.end)
        bounds = {one: start for one, start in self._lower_bounds(closed).items() if closed.start <= start < end}
        if not bounds:
            return 0
        start = min(bounds.values())
        wanted = Range(start=start, end=end, run_id="", origin=Origin.STREAM, text=self._text)
        read = EventReader(lambda _, source: self._events(spark, source, start), tables=lambda _: self._tables)
        rows = find_in_range(spark, read, self._spec, self._sources, wanted).where(F.col("key").isin(sorted(bounds)))
        rows.write.format("kafka").options(**findings_sink(self._settings)).save()
        return len(bounds)

    def _events(self, spark: SparkSession, source: Source, since: datetime) -> DataFrame:
        """Read each event since then, once: one is appended at most `max_ahead` before its event time."""
        options = {
            "subscribe": self._settings.names.events(source.name),
            "startingTimestamp": str(int((since - source.max_ahead).timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        records = spark.read.format("kafka").options(**kafka_options(self._settings), **options).load()
        events = parse_events(records, source, self._used.get(source.name))
        return events.dropDuplicates([*IDENTITY, "event_time"])

    def _lower_bounds(self, closed: OpenWindows) -> dict[str, datetime]:
        """Find which findings have a lower bound for their latest score, and the starts of their windows."""
        found: dict[str, datetime] = {}
        with TopicReader(self._settings, f"exact:{self._spec.name}", self._settings.names.findings) as topic:
            starts, (_, ends) = (
                topic.since(closed.start - max(source.max_ahead for source in self._sources)),
                topic.bounds(),
            )
            for message in topic.read(starts, ends):
                value = message.value() or b""
                if self._spec.name.encode() in value and b'"at_least":' in value:
                    finding = json.loads(value)
                    if (finding["detector"], finding["version"]) == (self._spec.name, self._spec.version):
                        found.pop(finding["finding_id"], None)
                        if finding["at_least"]:
                            found[finding["finding_id"]] = datetime.fromisoformat(finding["window_start"])
        return found
