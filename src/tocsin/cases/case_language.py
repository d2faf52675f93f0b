"""The language of cases: timelines of events, and the findings that a detector must make of them.

Cases stand in the file of the detector; `tocsin test` runs them (docs/write/testing.md)::

    CASES = [
        Case(
            "60 failures in ten seconds",
            events=at("12:00:00", user_id="mallory", action="login failed").repeat(60, every="100 ms"),
            expect=[email(user_id="mallory", window="12:00:00", score=60)],
        ),
        Case(
            "a forgotten password",
            events=at("12:00:00", user_id="alice", action="login failed").repeat(3, every="2 seconds")
            .then(after="5 seconds", action="login succeeded"),
            expect=[],
        ),
    ]

A time is written as "12:00:05.5", on Monday, 5 January 2026, or with a date, as "2026-03-29 01:59:30"; it is UTC unless
it says otherwise. A timeline is worked out only when it is run, so that a mistake in a case harms no job.

Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from tocsin.declare.model.durations import parse_duration
from tocsin.declare.model.errors import ConfigError

DAY = date(2026, 1, 5)
"""The day of times that are written without one."""

MOST_EVENTS = 20_000
"""Of one case; it is written down by hand and run several times."""


@dataclass(frozen=True)
class CodePlace:
    """A line of a file."""

    file: str
    line: int

    def fault(self, what: str) -> ConfigError:
        """Make an error about this line."""
        return ConfigError.one(self.file, what, line=self.line)


@dataclass(frozen=True)
class CaseEvent:
    """One event of a case; `columns` is what it says.

    Attributes:
        time: UTC; None for a raw line, whose time its source reads.
        text: the raw line; None where the columns are given.
        is_tick: nothing comes in, but time has come this far.
    """

    place: CodePlace
    time: datetime | None
    columns: Mapping[str, Any]
    text: str | None = None
    is_tick: bool = False


@dataclass(frozen=True)
class Timeline:
    """Events of a case, as `at` and `line` begin them; `place` is the line on which it begins."""

    place: CodePlace
    _make: Callable[[], list[CaseEvent]]

    def events(self) -> list[CaseEvent]:
        """Work out the events, in the order in which they are written.

        ConfigError, where a retry does not help, if a time or a duration is none, or there are too many events.
        """
        return self._make()

    def repeat(self, times: int, *, every: str | None = None) -> Timeline:
        """Write all events so far so many `times` in all, each time `every` later ("100 ms"); at once without it."""
        place = _caller()

        def make() -> list[CaseEvent]:
            events = self.events()
            if type(times) is not int or times < 1:
                raise place.fault(f"repeat takes a whole number from 1 on, not {times!r}")
            if times * len(events) > MOST_EVENTS:
                raise place.fault(f"makes {times * len(events):,} events; a case has at most {MOST_EVENTS:,}")
            step = timedelta(0) if every is None else _duration(every, place)
            return [_later(event, step * number, place) for number in range(times) for event in events]

        return Timeline(self.place, make)

    def then(self, more: Timeline | None = None, /, *, after: str | None = None, **columns: Any) -> Timeline:
        """Add events: those of the timeline `more`, or one so long `after` the last, like it but for `columns`."""
        place = _caller()

        def make() -> list[CaseEvent]:
            events = self.events()
            if (more is None) == (after is None) or (more is not None and columns):
                raise place.fault('then takes at("12:00:05", ...), or after="5 seconds" and the columns that change')
            if more is not None:
                return events + more.events()
            last = events[-1]
            if last.text is not None:
                raise place.fault("a raw line has no columns to change; write then(line(...))")
            if last.is_tick and columns:
                raise place.fault('a tick has no columns; write then(at("12:00:05", ...))')
            changed = replace(last, place=place, columns={**last.columns, **columns})
            return [*events, _later(changed, _duration(str(after), place), place)]

        return Timeline(self.place, make)


@dataclass(frozen=True)
class ExpectedFinding:
    """A finding that a case expects; `window` and `score` are None where the case leaves them open.

    `level` is "email" or "urgent"; `window` the time at which the window begins, or of its event.
    """

    place: CodePlace
    level: str
    entity: Mapping[str, Any]
    window: str | None = None
    score: float | None = None

    @property
    def start(self) -> datetime | None:
        """The start of its window, UTC; ConfigError if it is no time."""
        return None if self.window is None else moment(self.window, self.place)


@dataclass(frozen=True)
class Case:
    """A timeline of events, and all findings that the detector must make of it.

    Attributes:
        expect: exactly these findings; an empty list for a case that must stay silent.
        tables: rows of tables that the detector joins, by table: a timeline whose times say from when a row holds.
        train_on: of a detector with a model: the events whose features its model is trained on.

    For `events` and `train_on` a list of timelines does too: one after the other, at their own times.
    """

    name: str
    events: Timeline | Sequence[Timeline]
    expect: Sequence[ExpectedFinding]
    tables: Mapping[str, Timeline] = field(default_factory=dict)
    train_on: Timeline | Sequence[Timeline] | None = None
    place: CodePlace = field(default_factory=lambda: _caller(3), kw_only=True, compare=False)

    @property
    def is_silent(self) -> bool:
        """Return whether nothing is expected of it."""
        return not self.expect

    def written(self) -> list[CaseEvent]:
        """Work out its events, in the order in which they are written; errors as `Timeline.events`."""
        timelines = [self.events] if isinstance(self.events, Timeline) else self.events
        return [event for timeline in timelines for event in timeline.events()]


def at(when: str, /, **columns: Any) -> Timeline:
    """Begin a timeline with an event at the time `when`; what columns are that it does not name, the source decides."""
    place = _caller()
    return Timeline(place, lambda: [CaseEvent(place, moment(when, place), columns)])


def tick(when: str, /) -> Timeline:
    """Begin a timeline with a moment at which nothing comes in: a tick, as an idle source writes one each second."""
    place = _caller()
    return Timeline(place, lambda: [CaseEvent(place, moment(when, place), {}, is_tick=True)])


def line(text: str, /) -> Timeline:
    """Begin a timeline with a raw line, which is parsed as the source declares; its time is the one it states."""
    place = _caller()
    return Timeline(place, lambda: [CaseEvent(place, None, {}, text)])


def email(*, window: str | None = None, score: float | None = None, **entity: Any) -> ExpectedFinding:
    """Expect a finding of level email: its entity, and if the case says so the start of its window and its score."""
    return ExpectedFinding(_caller(), "email", entity, window, score)


def urgent(*, window: str | None = None, score: float | None = None, **entity: Any) -> ExpectedFinding:
    """Expect a finding of level urgent; see `email`."""
    return ExpectedFinding(_caller(), "urgent", entity, window, score)


def moment(text: str, place: CodePlace) -> datetime:
    """Read a time of a case; ConfigError if it is none."""
    try:
        try:
            read = datetime.combine(DAY, time.fromisoformat(text))
        except ValueError:
            read = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        what = f'{text!r} is no time; write "12:00:05" or "2026-03-29 12:00:05.5"'
        raise place.fault(what) from None
    return read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)


def _duration(text: str, place: CodePlace) -> timedelta:
    try:
        return parse_duration(text)
    except (TypeError, ValueError) as error:
        raise place.fault(str(error)) from None


def _later(event: CaseEvent, step: timedelta, place: CodePlace) -> CaseEvent:
    if not step:
        return event
    if event.time is None:
        raise place.fault("a raw line keeps the time that it states; write one line for each time")
    return replace(event, time=event.time + step)


def _caller(depth: int = 2) -> CodePlace:
    frame = sys._getframe(depth)
    return CodePlace(str(Path(frame.f_code.co_filename)), frame.f_lineno)
