"""A detector with `step`, run on a stream and on history, and what it must find, counted without either."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession

from tests.spark.conftest import Feed
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.source import Source
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.detect.spark.step_query import detector_function
from tocsin.spark.events import parse_events, prepare_events

SECOND = 1_000_000
MICROSECOND = timedelta(microseconds=1)
LATENESS, FORGET, SILENCE = 10 * SECOND, 60 * SECOND, 20 * SECOND
WRONG = 9
SOURCE = Source(
    name="doors", title="t", owner="o@example.com", formats=("json",), key="user", event_time="timestamp",
    columns={"user": "string", "timestamp": "timestamp", "place": "string", "kind": "int"},
    lateness=LATENESS * MICROSECOND,
)  # fmt: skip
START = datetime(2026, 1, 1, tzinfo=UTC)

# Each change of the place is a finding, whose score is how many changes there were; so is silence of 20 seconds.
CODE = '''"""Changes of place, and silence."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Seen:
    place: str = ""
    changes: int = 0
    timer: datetime | None = None


@detector(source="doors", entity="user", window=None, forget_after="60 seconds", levels=Levels(email=0, urgent=3),
          owner="a@example.com", runbook="docs/r.md", stage="live")
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    if event.kind == 9:
        raise ValueError(f"no such kind: {event.kind}")
    moved = state.place not in ("", event.place)
    seen = Seen(event.place, state.changes + moved, event.event_time + timedelta(seconds=20))
    return seen, [StepFinding(seen.changes, {"before": state.place}, [event])] if moved else []


def on_timer(key: str, state: Seen, at: datetime) -> tuple[Seen, list[StepFinding]]:
    return state, [StepFinding(0.5, {"silent": key})]
'''


@dataclass(frozen=True)
class Door:
    """One event: microseconds after START, user, place, kind."""

    at: int
    user: str
    place: str
    kind: int
    offset: int

    def record(self) -> dict[str, Any]:
        text = f"{START + self.at * MICROSECOND:%Y-%m-%dT%H:%M:%S.%fZ}"
        place = {"raw_topic": "raw.doors", "raw_partition": 0, "raw_offset": self.offset}
        envelope = {"event_time": text, "ingested_at": text, "source": "doors", "schema_version": 1}
        return place | envelope | {"user": self.user, "timestamp": text, "place": self.place, "kind": self.kind}


Found = dict[tuple[str, int, int | None], float]
"""Scores by user, time, and offset of the event; None for a timer."""


def timeline(user: str, steps: Iterable[tuple[float, str, int]], first: int = 0) -> list[Door]:
    """Make the events of `user`, each so many seconds after the one before, at a place; offsets from `first` on."""
    made, at = [], 0
    for offset, (gap, place, kind) in enumerate(steps, start=first):
        at += round(gap * SECOND)
        made.append(Door(at, user, place, kind, offset))
    return made


def truth(events: Sequence[Door], until: int) -> Found:
    """Count what CODE must find up to and with `until`, by a model of its own: the gaps between the events of each."""
    found: Found = {}
    for user in {one.user for one in events}:
        mine = sorted((one for one in events if one.user == user and one.kind != WRONG), key=lambda e: (e.at, e.offset))
        changes = 0
        for number, one in enumerate(mine):
            earlier = mine[number - 1] if number else None
            if earlier is None or one.at - earlier.at >= FORGET:
                changes = 0
            elif one.place != earlier.place:
                changes += 1
                found[user, one.at, one.offset] = changes
            following = mine[number + 1].at if number + 1 < len(mine) else until + 1
            if one.at + SILENCE < following:
                found[user, one.at + SILENCE, None] = 0.5
    return found


def told(records: Iterable[Any]) -> Found:
    """Bring findings into the form of `truth`; each must come once."""
    found: Found = {}
    for record in records:
        finding = Finding.model_validate_json(record.value)
        assert finding.finding_id == record.key
        assert finding.event_time_max is not None
        topic, _, offset = finding.discriminator.split("/")
        at = (finding.event_time_max - START) // MICROSECOND
        key = (finding.entity["user"], at, None if topic == "timer" else int(offset))
        assert key not in found
        found[key] = finding.score
    return found


class StepDetector:
    """CODE, or another text, as a detector of SOURCE."""

    def __init__(self, spark: SparkSession, folder: Path, code: str = CODE) -> None:
        path = folder / "detectors" / "places.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        self.spec: DetectorSpec = read_spec(path)
        self._spark = spark

    def batch(self, events: Sequence[Door], since: int, until: int, observed: Observation | None = None) -> DataFrame:
        """Find on history from `since` to before `until`, in microseconds after START."""
        rows = self._spark.createDataFrame([(json.dumps(one.record()).encode(),) for one in events], "value binary")
        start, end = START + since * MICROSECOND, START + until * MICROSECOND
        wanted = Range(start=start, end=end, run_id="r", observed=observed)
        return find_in_range(
            self._spark, EventReader(lambda *_: parse_events(rows, SOURCE)), self.spec, [SOURCE], wanted
        )

    def streamed(self, records: DataFrame) -> DataFrame:
        """Make findings of a stream of `records`."""
        prepared = prepare_events(parse_events(records, SOURCE), self.spec, SOURCE.lateness)
        return make_findings(detector_function(self.spec, SOURCE)(prepared, None), self.spec, Emission())


class StepStream:
    """The stream of a detector, which can be stopped and started; what it has written."""

    def __init__(self, detector: StepDetector, feed: Feed, folder: Path) -> None:
        self._detector, self._feed, self._folder = detector, feed, folder
        self.records: list[Any] = []
        self.observed: list[dict[str, Any]] = []

    def run(self, batches: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Read `batches`, each as a micro-batch, from where the last run ended."""
        rows = self._detector.streamed(self._feed.records)
        writer = rows.writeStream.outputMode("append").option("checkpointLocation", str(self._folder))
        query = writer.foreachBatch(lambda batch, _: self.records.extend(batch.collect())).start()
        try:
            for batch in batches:
                self._feed.send(list(batch))
            query.processAllAvailable()
            for progress in query.recentProgress:
                self.observed += [row.asDict() for name, row in progress.observedMetrics.items() if name == "steps"]
        finally:
            query.stop()


def ticks(at: int) -> list[list[dict[str, Any]]]:
    """Batches that move the watermark to `at`; Spark uses it in the batch after the one in which it has read it."""
    moments = [START + (at + LATENESS + number) * MICROSECOND for number in (0, 1_000, 2_000)]
    return [[{"tick": True, "event_time": f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"}] for moment in moments]
