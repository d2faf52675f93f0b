"""Timelines at random: which changes are made, and that the same seed makes the same ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.rig.samples.cases import SOURCE, SPEC
from tocsin import Case, at, line
from tocsin.cases.case_events import make_event
from tocsin.cases.generated.random_timelines import MOST_EVENTS, random_cases

CASES = [
    Case("many", events=at("12:00:01", user_id="a", action="x").repeat(2 * MOST_EVENTS, every="1 second"), expect=[]),
    Case("few", events=at("12:00:00", user_id="b", action="y").then(after="3 seconds", action="z"), expect=[]),
]


def told(seed: int) -> list[object]:
    return [[(one.time, dict(one.columns)) for one in case.events.events()]
            for case in random_cases(CASES, SPEC, SOURCE, 60, seed)]  # fmt: skip


def test_the_same_seed_makes_the_same_timelines() -> None:
    assert told(1) == told(1)
    assert told(1) != told(2)


def test_events_are_moved_left_out_repeated_given_away_and_said_otherwise() -> None:
    made = [case.events.events() for case in random_cases(CASES, SPEC, SOURCE, 60, seed=1)]
    assert all(0 < len(events) <= 2 * MOST_EVENTS for events in made)
    assert {len(events) for events in made} > {1, 2, MOST_EVENTS}
    every = [one for events in made for one in events]
    assert {one.columns["user_id"] for one in every} >= {"a", "b", "a2", "b2"}
    assert {one.columns["action"] for one in every} >= {"x", "y", "z"}
    edges = {(one.time - timedelta(microseconds=more)).microsecond for one in every if one.time for more in (0, -1)}
    assert 0 in edges
    assert len(edges) > 100
    assert all(make_event(one, SOURCE, ()) for one in every), "the source takes each of them"


def test_raw_lines_keep_the_time_that_they_state() -> None:
    raw = [replace(CASES[0], events=line("a").then(line("b")))]
    made = [one for case in random_cases(raw, SPEC, SOURCE, 20, seed=1) for one in case.events.events()]
    assert {(one.text, one.time) for one in made} == {("a", None), ("b", None)}
