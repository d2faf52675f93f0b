"""Cases at the limits: what is expected follows from the limits alone, and lanes keep cases apart."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.rig.samples.cases import SOURCE, SPEC
from tocsin import Case, at
from tocsin.cases.boundaries import MOST_EVENTS, Written, boundary_cases
from tocsin.cases.case_events import DeclaredEvent, make_event, starts_of, written_events
from tocsin.cases.case_report import CaseFinding
from tocsin.cases.spark.case_run import timeline_lines
from tocsin.cases.spark.prepared_case import moved_lanes, own_lanes
from tocsin.declare.model.detector import DetectorSpec, Levels

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def written(case: Case) -> Written:
    return case, [make_event(one, SOURCE, ["user_id", "action"]) for one in written_events(case, SPEC)]


def found(count: int, start: datetime = NOON, length: int = 10) -> dict[str, CaseFinding]:
    end = start + timedelta(seconds=length)
    one = CaseFinding(finding_id="f", entity={"user_id": "m"}, level="email", score=count, start=start, end=end)
    return {"f": one}


FIRES = written(Case("fires", events=at("12:00:00", user_id="m", action="x").repeat(5, every="1 ms"), expect=[]))


def made(spec: DetectorSpec, score: int = 5) -> dict[str, tuple[list[Any], list[DeclaredEvent]]]:
    cases, _ = boundary_cases(spec, SOURCE, [FIRES], [found(score)])
    return {case.name: ([(one.level, one.entity, one.window, one.score) for one in case.expect], list(events))
            for case, events in cases}  # fmt: skip


def test_at_a_limit_it_is_silent_and_above_it_fires() -> None:
    cases = made(replace(SPEC, levels=Levels(email=3, urgent=6)))
    start, entity = NOON.isoformat(), {"user_id": "m"}
    assert {name: expected for name, (expected, _) in cases.items()} == {
        "3 events: at the limit of email": [],
        "4 events: just above the limit of email": [("email", entity, start, 4)],
        "6 events: at the limit of urgent": [("email", entity, start, 6)],
        "7 events: just above the limit of urgent": [("urgent", entity, start, 7)],
        "4 events on both sides of the edge of a window": [],
        "4 events of two entities": [],
    }
    assert {name: len(events) for name, (_, events) in cases.items()} == {
        name: int(name.partition(" ")[0]) for name in cases
    }
    edge = cases["4 events on both sides of the edge of a window"][1]
    assert {starts_of(event.time, SPEC)[0] for event in edge} == {NOON, NOON + timedelta(seconds=10)}
    both = cases["4 events of two entities"][1]
    assert {event.columns["user_id"] for event in both} == {"m", "m-2"}
    assert all(event.columns["timestamp"] == event.time for _, events in cases.values() for event in events)


def test_every_overlapping_window_that_holds_all_events_fires() -> None:
    spec = replace(SPEC, levels=Levels(urgent=3), slide=timedelta(seconds=5))
    cases = made(spec)
    starts = [NOON.isoformat(), (NOON - timedelta(seconds=5)).isoformat()]
    assert sorted(one[2] for one in cases["4 events: just above the limit of urgent"][0]) == sorted(starts)
    assert not any("edge" in name for name in cases), "overlapping windows have no edge between two events"


@pytest.mark.parametrize(
    ("spec", "score", "why"),
    [
        (SPEC, 4, "in no case that fires is the score the number of like events of one entity"),
        (replace(SPEC, slide=timedelta(seconds=3)), 5, "windows of different length"),
        (replace(SPEC, levels=Levels(email=MOST_EVENTS)), 5, "its limit is above 2,000 events"),
    ],
)
def test_why_there_are_none_is_told(spec: DetectorSpec, score: int, why: str) -> None:
    cases, notes = boundary_cases(spec, SOURCE, [FIRES], [found(score)])
    assert cases == []
    assert why in " ".join(notes)


@pytest.mark.parametrize("window", [timedelta(seconds=10), timedelta(hours=7), timedelta(days=9), None])
def test_lanes_keep_weekday_time_of_day_and_place_in_the_window(window: timedelta | None) -> None:
    spec = replace(SPEC, window=window)
    times = [[NOON], [NOON, NOON + timedelta(days=3)], [NOON]]
    lanes = moved_lanes([(case[0], case[-1]) for case in times], spec, timedelta(hours=2))
    for lane, case in enumerate(times):
        for moment in case:
            moved = moment + lanes.offsets[lane]
            assert (moved.weekday(), moved.time()) == (moment.weekday(), moment.time())
            assert lanes.lane_of(moved) == lane
            if window is not None:
                inside = [moment - start for start in starts_of(moment, spec)]
                assert [moved - start for start in starts_of(moved, spec)] == inside
                assert all(lanes.lane_of(start) == lane for start in starts_of(moved, spec))
    assert all(lanes.end > moment + lanes.offsets[2] for moment in times[1])


def test_cases_that_stay_at_their_dates_share_a_stream_where_they_cannot_meet() -> None:
    spans = [(NOON, NOON), (NOON + timedelta(days=90), NOON + timedelta(days=91)), (NOON, NOON + timedelta(days=200))]
    streams = own_lanes(spans, SPEC, timedelta(hours=2))
    assert [numbers for numbers, _ in streams] == [[0, 1], [2]]
    for numbers, lanes in streams:
        assert set(lanes.offsets) == {timedelta(0)}
        for lane, number in enumerate(numbers):
            assert [lanes.lane_of(moment) for moment in spans[number]] == [lane, lane]
        assert lanes.end > spans[numbers[-1]][1]


def test_a_timeline_is_written_in_runs() -> None:
    events = at("12:00:00", user_id="m", action="x").repeat(3, every="100 ms").then(after="5 seconds", action="y")
    assert timeline_lines(written(Case("c", events=events, expect=[]))[1]) == [
        "12:00:00  user_id='m', action='x'  x 3 every 0.1 s until 12:00:00.2",
        "12:00:05.2  user_id='m', action='y'",
    ]
