"""The language of cases, and the events that it makes: what a timeline says, and the line of each mistake."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import FunctionType
from typing import Any

import pytest

from tests.rig.samples.cases import SOURCE, SPEC
from tocsin import Case, at, email, line, tick, urgent
from tocsin.cases.case_events import check_expectations, make_event, span_of, written_events
from tocsin.cases.case_language import MOST_EVENTS, Timeline
from tocsin.declare.model.detector import DetectorSpec, Entities
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


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def columns_of(*used: str, **columns: Any) -> dict[str, Any]:
    (written,) = at("12:00:00", **columns).events()
    return dict(make_event(written, SOURCE, used).columns)


def test_columns_that_are_not_named_follow_the_declaration() -> None:
    assert columns_of("user_id", user_id="a") == {
        "user_id": "a", "timestamp": NOON, "action": None, "amount": None, "tries": None, "ok": None, "seen": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"user": "a"}, "user: is no column of source 'logins' (it has: user_id, timestamp"),
        ({"user_id": "a"}, "action: is missing: the detector reads it, and source 'logins' requires it"),
        ({"action": None}, "action: is null, but source 'logins' requires it"),
        ({"action": 7}, "action: is string in source 'logins', not 7"),
        ({"action": "x", "tries": 2**31}, "tries: is int in source 'logins', not 2147483648"),
        ({"action": "x", "tries": True}, "tries: is int in source 'logins', not True"),
        ({"action": "x", "ok": 1}, "ok: is boolean in source 'logins', not 1"),
        ({"action": "x", "amount": "1"}, "amount: is double in source 'logins', not '1'"),
        ({"action": "x", "seen": "later"}, "'later' is no time"),
    ],
)
def test_a_column_that_cannot_be_is_told_with_its_line(columns: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        columns_of("action", **columns)
    assert any(what in str(fault) for fault in caught.value.faults)
    assert all(fault.where == __file__ and fault.line for fault in caught.value.faults)


def test_a_record_has_the_envelope_and_moves_in_time() -> None:
    (written,) = at("12:00:00", user_id="a", seen="11:00:00").events()
    record = make_event(written, SOURCE, ["user_id"]).document(SOURCE, 7, timedelta(days=7))
    assert (record["raw_topic"], record["raw_partition"], record["raw_offset"]) == ("raw.logins", 0, 7)
    assert record["event_time"] == record["timestamp"] == record["ingested_at"] == "2026-01-12T12:00:00.000000Z"
    assert (record["seen"], "amount" in record) == ("2026-01-12T11:00:00.000000Z", False)


@pytest.mark.parametrize(
    ("expected", "spec", "what"),
    [
        (urgent(user_id="a"), SPEC, "'urgent' is no level of d (it has: email)"),
        (email(user="a"), SPEC, "names the entity by user; the entity of d is user_id"),
        (email(), SPEC, "names the entity by nothing"),
        (email(user_id="a", window="12:00:03"), SPEC, "no window begins at 12:00:03"),
        (email(user_id="a", window="12:00:20"), SPEC, "no event in the window 12:00:20 to 12:00:30"),
        (email(user_id="a", window="soon"), SPEC, "'soon' is no time"),
        (email(user_id="a", window="12:00:01"), replace(SPEC, window=None), "no event at 12:00:01"),
        (email(user_id="a", window="12:00:05"), replace(SPEC, slide=timedelta(seconds=5)), ""),
        (email(user_id="a", window="12:00:00", score=60), SPEC, ""),
        (email(user_id="a", window="12:00:00"), replace(SPEC, window=None), ""),
    ],
)
def test_an_expectation_that_contradicts_the_detector_is_told(expected: Any, spec: DetectorSpec, what: str) -> None:
    case = Case("c", events=at("12:00:00", user_id="a").then(after="9 seconds"), expect=[expected])
    events = [make_event(one, SOURCE, []) for one in written_events(case, spec)]
    faults = check_expectations(case, spec, events, has_sessions=False)
    assert [what in str(fault) for fault in faults] == ([True] if what else [])
    assert all(fault.line == expected.place.line for fault in faults)


@pytest.mark.parametrize(
    ("events", "slide", "first", "last"),
    [
        (tick("12:00:00").then(tick("12:00:30")), 10, 0, 20),
        (tick("12:00:01").then(tick("12:00:29.9")), 10, 0, 10),
        (at("12:00:12").then(after="1 second"), 10, 10, 10),
        (at("12:00:12").then(tick("12:00:15")), 10, 10, 10),
        (at("12:00:12").then(tick("12:00:30")), 5, 10, 20),
    ],
)
def test_the_windows_of_a_case_of_silence(events: Timeline, slide: int, first: int, last: int) -> None:
    spec = replace(SPEC, expect=Entities(["a"]), slide=timedelta(seconds=slide))
    case = Case("c", events=events, expect=[])
    made = [make_event(one, SOURCE, []) for one in written_events(case, spec)]
    start, after = (moment - NOON for moment in span_of(made, spec))
    starts = range(0, 60, slide)
    assert [one for one in starts if start <= timedelta(seconds=one) < after] == list(range(first, last + 1, slide))
    late = replace(case, expect=[email(user_id="a", window=f"12:00:{last + slide:02}")])
    (fault,) = check_expectations(late, spec, made, has_sessions=False)
    assert "add a tick at 12:00:" in str(fault)


def test_ticks_alone_are_no_case_of_a_detector_of_what_is_there() -> None:
    with pytest.raises(ConfigError, match="has no events"):
        written_events(Case("c", events=tick("12:00:00"), expect=[]), SPEC)


def test_time_goes_on_from_a_tick_without_an_event() -> None:
    case = Case("c", events=tick("12:00:00").then(after="30 seconds"), expect=[])
    later = written_events(case, replace(SPEC, expect=Entities(["a"])))
    assert [one.is_tick for one in later] == [True, True]
    assert later[1].time is not None and later[0].time is not None
    assert later[1].time - later[0].time == timedelta(seconds=30)
    with pytest.raises(ConfigError, match="a tick has no columns"):
        tick("12:00:00").then(after="30 seconds", user_id="a").events()


def test_a_case_of_ignored_lines_alone_has_no_event_in_the_window_that_it_expects() -> None:
    case = Case("c", events=at("12:00:00", user_id="a"), expect=[email(user_id="a", window="12:00:00")])
    (fault,) = check_expectations(case, SPEC, [], has_sessions=False)
    assert "the case has no event" in str(fault)
