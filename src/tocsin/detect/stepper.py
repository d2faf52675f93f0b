"""Run `step` over the events of one entity in the order of their time: the same code for a stream and for history.

Time is counted in microseconds since 1970. An event at a moment comes before a timer at that moment; a timer comes
before all later events. An entity without an event for `forget_after` is forgotten: its state, and its timer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tocsin.declare.code.own_modules import code_of
from tocsin.declare.model.detector import DetectorSpec, Levels
from tocsin.declare.model.durations import EPOCH, MICROSECOND
from tocsin.declare.model.finding import CUT, MAX_EVIDENCE, Finding, finding_id
from tocsin.declare.model.sizes import SAMPLE_BYTES, shortened
from tocsin.declare.model.steps.step_contract import Event, StepFinding
from tocsin.detect.step_program import Key, StepFault, StepProgram

MOST_FAULTS = 20
"""So many faults of a task are told in full."""

UNTOLD = "more"
TIMER_PLACE = "timer/0/"
"""So the identity of a timer begins, where that of an event names its topic."""

_LEAST_TIMER = 1_000_000


class PlacedEvent(NamedTuple):
    """One event: its time, its identity (topic, partition and offset of its raw record), its columns as JSON."""

    at: int
    topic: str
    partition: int
    offset: int
    columns: str

    @property
    def place(self) -> str:
        """The identity as text."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class StepOutcome(NamedTuple):
    """One thing to tell of an event or a timer, whose time and identity are `at` and `place`.

    Attributes:
        fault: why the call did not count; empty if it did. `UNTOLD` where many have been told.
    """

    at: int
    place: str
    record: tuple[str, str] | None = None
    fault: str = ""
    is_unscored: bool = False


@dataclass
class KeyState:
    """What is known of one entity: its state as JSON, None if it is new, and the time of its timer, if any."""

    snapshot: str | None = None
    last: int = 0
    timer: int | None = None


@dataclass(frozen=True)
class StepTask:
    """All that a worker needs to run `step`. `forget_after` is in microseconds, `columns` give their types."""

    name: str
    version: str
    entity: tuple[str, ...]
    levels: Levels
    path: Path
    text: bytes
    forget_after: int
    columns: dict[str, str]

    @classmethod
    def of(cls, spec: DetectorSpec, columns: dict[str, str], text: bytes | None = None) -> StepTask:
        """Make the task of `spec`, whose source has `columns`; its file holds `text`, or held it earlier."""
        assert spec.forget_after is not None, "a detector with step has it"
        after = spec.forget_after // MICROSECOND
        code = code_of(spec.path) if text is None else text
        return cls(spec.name, spec.version, spec.entity, spec.levels, spec.path, code, after, columns)


class Stepper:
    """Runs one detector. What it is given and returns can be kept, in another process too."""

    def __init__(self, task: StepTask) -> None:
        self._task = task
        self._failed = 0
        self._records = StepRecords(task.name, task.version, task.entity, task.levels)
        self._blank = dict.fromkeys(task.columns)
        self._times = [name for name, kind in task.columns.items() if kind == "timestamp"]
        self._doubles = [name for name, kind in task.columns.items() if kind == "double"]

    @cached_property
    def program(self) -> StepProgram:
        """The code of the detector; ConfigError if it cannot be run."""
        return _program(self._task.path, self._task.text)

    def take(self, key: tuple[str, ...], kept: KeyState, event: PlacedEvent) -> Iterator[StepOutcome]:
        """Take the next `event` of the entity `key`, and change what is `kept` of it; a failing one changes nothing."""
        yield from self.pass_time(key, kept, event.at - 1)
        if self.is_forgotten(kept, event.at):
            kept.snapshot, kept.timer = None, None
        try:
            made = self.program.step(_shown(key), kept.snapshot, self._event(event))
            timer = self._timer(made[1], event.at, event.at)
            outcome = self._outcome(key, event.at, event.place, made[2])
        except StepFault as fault:
            yield self._failure(event.at, event.place, fault)
            return
        kept.snapshot, kept.last, kept.timer = made[0], event.at, timer
        if outcome is not None:
            yield outcome

    def pass_time(self, key: tuple[str, ...], kept: KeyState, until: int) -> Iterator[StepOutcome]:
        """Call `on_timer` for each timer of the entity `key` up to and with `until`."""
        while kept.snapshot is not None and kept.timer is not None and kept.timer <= until:
            if self.is_forgotten(kept, kept.timer):
                return
            at, place = kept.timer, f"{TIMER_PLACE}{kept.timer}"
            try:
                made = self.program.on_timer(_shown(key), kept.snapshot, EPOCH + at * MICROSECOND)
                timer = self._timer(made[1], at, at + _LEAST_TIMER)
                outcome = self._outcome(key, at, place, made[2])
            except StepFault as fault:
                kept.snapshot, kept.timer = self.program.without_timer(kept.snapshot), None
                yield self._failure(at, place, fault)
                continue
            kept.snapshot, kept.timer = made[0], timer
            if outcome is not None:
                yield outcome

    def is_forgotten(self, kept: KeyState, at: int) -> bool:
        """Return whether nothing of the entity counts any more at the time `at`."""
        return kept.snapshot is None or at - kept.last >= self._task.forget_after

    def wakes_at(self, kept: KeyState) -> int | None:
        """Tell when to look at the entity again if no event comes: for its timer, or to forget it; None for never."""
        if kept.snapshot is None:
            return None
        end = kept.last + self._task.forget_after
        return end if kept.timer is None else min(kept.timer, end)

    def _failure(self, at: int, place: str, fault: StepFault) -> StepOutcome:
        self._failed += 1
        return StepOutcome(at, place, fault=str(fault) if self._failed <= MOST_FAULTS else UNTOLD)

    def _event(self, event: PlacedEvent) -> Event:
        try:
            return self._read(event)
        except (ValueError, OverflowError) as error:  # Spark's times go further than Python's
            raise StepFault(f"the event cannot be read in Python: {error}") from error

    def _read(self, event: PlacedEvent) -> Event:
        columns: dict[str, Any] = self._blank | json.loads(event.columns)
        for name in self._times:
            if columns[name] is not None:
                columns[name] = datetime.fromisoformat(columns[name])
        for name in self._doubles:  # JSON has no NaN: it comes as text
            if columns[name] is not None:
                columns[name] = float(columns[name])
        return Event(EPOCH + event.at * MICROSECOND, **columns)

    def _timer(self, timer: datetime | None, at: int, earliest: int) -> int | None:
        if timer is None:
            return None
        fires = (timer - EPOCH) // MICROSECOND
        if fires < earliest:
            first = EPOCH + earliest * MICROSECOND
            raise self.program.fault(f"set a timer to {timer}, which is too early; at the earliest to {first}")
        if fires - at >= self._task.forget_after:
            raise self.program.fault(f"set a timer to {timer}, by when the entity is forgotten (forget_after)")
        return fires

    def _outcome(self, key: tuple[str, ...], at: int, place: str, found: list[StepFinding]) -> StepOutcome | None:
        if not found:
            return None
        try:
            best = self._records.best(found)
            if best is None:
                return StepOutcome(at, place, is_unscored=True)
            record = self._records.record(key, EPOCH + at * MICROSECOND, place, best)
        except Exception as error:  # whatever its objects do when they are written
            raise self.program.fault(f"returned a finding that cannot be written: {error}") from None
        return None if record is None else StepOutcome(at, place, record)


@lru_cache(maxsize=4)
def _program(path: Path, text: bytes) -> StepProgram:
    """Load a program once in each worker: it has a task for each partition of each batch."""
    return StepProgram(path, text)


def _shown(key: tuple[str, ...]) -> Key:
    return key if len(key) > 1 else key[0]


_SPLICED = {"origin", "run_id"}


class StepRecords:
    """Makes the records of one detector. They lack `origin` and `run_id`, which the run that writes them adds."""

    def __init__(self, name: str, version: str, entity: tuple[str, ...], levels: Levels) -> None:
        self._name, self._version, self._entity, self._levels = name, version, entity, levels

    def best(self, found: Sequence[StepFinding]) -> StepFinding | None:
        """Choose the highest finite score: all of `found` share one identity. TypeError if a score is not a number."""
        return max((finding for finding in found if _is_number(finding.score)), key=_score, default=None)

    def record(self, key: tuple[str, ...], at: datetime, place: str, found: StepFinding) -> tuple[str, str] | None:
        """Make finding_id and JSON of `found` for the entity `key` at the event, or timer, `place`; None below a limit.

        Raises a TypeError or ValueError if its evidence or context cannot be written as JSON.
        """
        score = _score(found)
        level = self._levels.reached(score)
        if level is None:
            return None
        entity = dict(zip(self._entity, key, strict=True))
        evidence, context = bounded(found.evidence, found.context)
        finding = Finding(
            finding_id=finding_id(self._name, entity, None, None, place),
            detector=self._name,
            version=self._version,
            entity=entity,
            level=level,
            score=score,
            limit=float(self._levels.limit(level)),
            evidence=evidence,
            context=context,
            event_time_max=at,
            discriminator=place,
        )
        return finding.finding_id, finding.model_dump_json(exclude_none=True, exclude=_SPLICED)


def bounded(evidence: Sequence[Any], context: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Cut what is too long for a finding, as `tocsin.detect.spark.findings` does; the context says what was cut."""
    samples = [_plain(event) for event in evidence[:MAX_EVIDENCE]]
    short = [event for event in samples if _length(event) <= SAMPLE_BYTES]
    cut = ["evidence"] if len(short) < len(samples) else []
    kept = {}
    for name, value in context.items():
        plain = _plain(value)
        if isinstance(plain, str):
            kept[name] = shortened(plain)
        elif _length(plain) <= SAMPLE_BYTES:
            kept[name] = plain
        else:
            cut.append(name)
    return short, kept | ({CUT: cut} if cut else {})


def _is_number(score: object) -> bool:
    if score is None:
        return False
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError(f"a score must be a number, not {score!r:.60}")
    return math.isfinite(score)


def _score(found: StepFinding) -> float:
    return float(found.score or 0)


def _length(plain: Any) -> int:
    return len(json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _plain(value: Any) -> Any:
    match value:
        case None | str() | bool() | int():
            plain: Any = value
        case float():
            plain = value if math.isfinite(value) else None
        case datetime():
            plain = f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        case Event():
            plain = {name: _plain(item) for name, item in vars(value).items() if item is not None}
        case Mapping():
            plain = {str(name): _plain(item) for name, item in value.items()}
        case Sequence():
            plain = [_plain(item) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} is nothing that a finding can hold")
    return plain
