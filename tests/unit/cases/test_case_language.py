"""The language of cases: what a timeline says, when it is worked out, and the line of each mistake."""

from __future__ import annotations

from datetime import UTC, datetime
from types import FunctionType

import pytest

from tocsin import Case, at, email, line
from tocsin.cases.case_language import MOST_EVENTS, Timeline
from tocsin.declare.model.errors import ConfigError


def moment(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-05T{text}").replace(tzinfo=UTC)


def said(timeline: Timeline) -> list[tuple[datetime | None, dict[str, object]]]:
    return [(one.time, dict(one.columns)) for one in timeline.events()]


def test_one_event_is_repeated_and_followed_by_others() -> None:
    timeline = at("12:00:00", user="a", n=1).repeat(3, every="100 ms").then(after="2 seconds", n=2)
    assert said(timeline.then(at("12:01", user="b"))) == [
        (moment("12:00:00"), {"user": "a", "n": 1}), (moment("12:00:00.100"), {"user": "a", "n": 1}),
        (moment("12:00:00.200"), {"user": "a", "n": 1}), (moment("12:00:02.200"), {"user": "a", "n": 2}),
        (moment("12:01:00"), {"user": "b"}),
    ]  # fmt: skip


def test_all_events_so_far_are_repeated() -> None:
    timeline = at("12:00:00", n=1).then(after="1 second", n=2).repeat(2, every="1 minute")
    assert [(time, columns["n"]) for time, columns in said(timeline)] == [
        (moment("12:00:00"), 1), (moment("12:00:01"), 2), (moment("12:01:00"), 1), (moment("12:01:01"), 2),
    ]  # fmt: skip
    assert [time for time, _ in said(at("12:00:00").repeat(2))] == [moment("12:00:00")] * 2


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("00:00", "2026-01-05T00:00:00+00:00"),
        ("23:59:59.999999", "2026-01-05T23:59:59.999999+00:00"),
        ("2026-03-29 01:59:30", "2026-03-29T01:59:30+00:00"),
        ("2026-03-29T01:59:30+02:00", "2026-03-28T23:59:30+00:00"),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(written: str, time: str) -> None:
    assert said(at(written))[0][0] == datetime.fromisoformat(time)


@pytest.mark.parametrize(
    ("timeline", "what"),
    [
        (lambda: at("25:00"), "'25:00' is no time"),
        (lambda: at("noon"), "'noon' is no time"),
        (lambda: at("12:00").repeat(0), "a whole number from 1 on, not 0"),
        (lambda: at("12:00").repeat(True), "a whole number from 1 on, not True"),
        (lambda: at("12:00").repeat(2, every="soon"), "'soon' is not a duration"),
        (lambda: at("12:00").repeat(MOST_EVENTS).repeat(2), "makes 40,000 events"),
        (lambda: at("12:00").then(n=1), 'after="5 seconds"'),
        (lambda: at("12:00").then(at("12:01"), n=1), 'after="5 seconds"'),
        (lambda: line("x").then(after="1 second"), "a raw line has no columns to change"),
        (lambda: line("x").repeat(2, every="1 second"), "keeps the time that it states"),
    ],
)
def test_a_mistake_is_told_when_the_case_runs_with_its_line(timeline: FunctionType, what: str) -> None:
    made = timeline()  # nothing yet: the file of a detector is imported by its job too
    with pytest.raises(ConfigError, match=what.replace("(", r"\(")) as caught:
        made.events()
    (fault,) = caught.value.faults
    assert (fault.where, fault.line) == (__file__, timeline.__code__.co_firstlineno)


def test_a_case_knows_its_line() -> None:
    here = test_a_case_knows_its_line.__code__.co_firstlineno
    case = Case("quiet", events=at("12:00"), expect=[])
    loud = Case("loud", events=at("12:00"), expect=[email(user="a", window="12:00:00")])
    assert (case.place.file, case.place.line, loud.place.line) == (__file__, here + 2, here + 3)
    assert (case.is_silent, loud.is_silent) == (True, False)
    assert loud.expect[0].start == moment("12:00:00")
