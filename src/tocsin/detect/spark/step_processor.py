"""Run `step` on a stream: each event waits until the watermark has passed it, then all are taken in order.

State of one entity, as Spark keeps it: `entity`, one JSON text with what is kept of it and which events wait; and
`waiting`, the events by the second in which they happened, so that a busy entity does not rewrite all that wait with
each batch. One timer of Spark at a time is set for it: for the first event that waits, the timer of its state, or the
end of `forget_after`, whichever comes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from tocsin.detect.stepper import KeyState, PlacedEvent, StepOutcome, Stepper, StepTask

OUTCOMES = "key string, value string, at bigint, place string, fault string, unscored boolean"
"""Columns of what comes of an event; see `StepOutcome`."""

_SECOND = 1_000_000
_MILLISECOND = 1_000
_TOLD = 20


def outcome_columns(outcome: StepOutcome) -> tuple[Any, ...]:
    """Return the values of `OUTCOMES`."""
    key, value = outcome.record or (None, None)
    return key, value, outcome.at, outcome.place, outcome.fault or None, outcome.is_unscored


@dataclass
class _Entity:
    """What is stored of an entity besides its events; `armed` is the timer of Spark that is set, in milliseconds.

    `waiting` has the time of the first event of each second in which some wait.
    """

    kept: KeyState = field(default_factory=KeyState)
    armed: int | None = None
    waiting: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> _Entity:
        stored = json.loads(text)
        waiting = {int(second): at for second, at in stored["waiting"].items()}
        return cls(KeyState(**stored["kept"]), stored["armed"], waiting)

    def written(self) -> str:
        return json.dumps({"kept": asdict(self.kept), "armed": self.armed, "waiting": self.waiting})


class StepProcessor(StatefulProcessor):
    """Spark's side of one detector with `step`."""

    def __init__(self, task: StepTask) -> None:
        self._task = task

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Begin a task; the file is not run before there is an event."""
        self._handle = handle
        self._entity = handle.getValueState("entity", "stored string")
        self._waiting = handle.getMapState("waiting", "second bigint", "events string")
        self._stepper = Stepper(self._task)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        """Let the events in `rows` wait, and take those that the watermark has passed."""
        entity = self._read()
        came: dict[int, list[str]] = {}
        waited = set(entity.waiting)
        for row in rows:
            second = row.at // _SECOND
            came.setdefault(second, []).append(_line(row))
            entity.waiting[second] = min(row.at, entity.waiting.get(second, row.at))
        for second, lines in came.items():
            known = self._waiting.getValue((second,)) if second in waited else None
            self._waiting.updateValue((second,), ("".join([known[0] if known else "", *lines]),))
        yield from self._go_on(key, entity, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Take the events that the watermark has passed, and call `on_timer`."""
        entity = self._read()
        if entity.armed == expiredTimerInfo.getExpiryTimeInMs():
            entity.armed = None  # Spark removes it
        yield from self._go_on(key, entity, timerValues)

    def close(self) -> None:
        """End a task."""

    def _read(self) -> _Entity:
        stored = self._entity.get()
        return _Entity() if stored is None else _Entity.read(stored[0])

    def _go_on(self, key: Any, entity: _Entity, times: TimerValues) -> Iterator[Row]:
        watermark = times.getCurrentWatermarkInMs() * _MILLISECOND
        for outcome in self._due(tuple(key), entity, watermark):
            yield Row(*_NAMES)(*outcome_columns(outcome))
        if self._stepper.is_forgotten(entity.kept, watermark):
            entity.kept = KeyState()
        moments = [*entity.waiting.values(), self._stepper.wakes_at(entity.kept)]
        wake = min((moment for moment in moments if moment is not None), default=None)
        if wake is None:
            self._arm(entity, None)
            self._entity.clear()
            return
        # It lies behind the watermark, so it is never the timer that Spark removes after this call.
        self._arm(entity, -(-wake // _MILLISECOND))
        self._entity.update((entity.written(),))

    def _due(self, key: tuple[str, ...], entity: _Entity, watermark: int) -> Iterator[StepOutcome]:
        """Take all that is due at `watermark`, second by second, so that one second is in memory at a time."""
        for second in sorted(second for second, first in entity.waiting.items() if first <= watermark):
            stored = self._waiting.getValue((second,))
            events = sorted(_event(line) for line in (stored[0] if stored else "").split("\n")[:-1])
            later = [event for event in events if event.at > watermark]
            for event in events[: len(events) - len(later)]:
                yield from self._stepper.take(key, entity.kept, event)
            if later:
                entity.waiting[second] = later[0].at
                self._waiting.updateValue((second,), ("".join(map(_line, later)),))
            else:
                del entity.waiting[second]
                self._waiting.removeKey((second,))
        yield from self._stepper.pass_time(key, entity.kept, watermark)

    def _arm(self, entity: _Entity, wake: int | None) -> None:
        """Let Spark call at `wake`, or earlier: one that is set and comes first is left, for it costs less than two."""
        if entity.armed is not None and wake is not None and entity.armed <= wake:
            return
        if entity.armed is not None:
            self._handle.deleteTimer(entity.armed)
        if wake is not None:
            self._handle.registerTimer(wake)
        entity.armed = wake


_NAMES = [column.split()[0] for column in OUTCOMES.split(", ")]


def _line(event: Any) -> str:
    return f"{event.at}\t{event.topic}\t{event.partition}\t{event.offset}\t{event.columns}\n"


def _event(line: str) -> PlacedEvent:
    at, topic, partition, offset, columns = line.split("\t", 4)
    return PlacedEvent(int(at), topic, int(partition), int(offset), columns)
