"""The example with `step`, called as the plain function that it is; its cases run in tests/spark."""

from datetime import UTC, datetime, timedelta

import pytest

from examples.travel.detectors.impossible_travel import LastLogin, step
from tocsin import Event, StepFinding

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BERLIN, LISBON, POTSDAM = (52.52, 13.40), (38.72, -9.14), (52.40, 13.06)


def login(hours: float, place: tuple[float, float], city: str | None = None) -> Event:
    return Event(NOON + timedelta(hours=hours), latitude=place[0], longitude=place[1], city=city)


def found(first: Event, second: Event) -> list[StepFinding]:
    state, findings = step("ann", LastLogin(), first)
    assert findings == []
    return step("ann", state, second)[1]


def test_two_far_places_in_a_short_time_are_found_with_both_cities() -> None:
    (one,) = found(login(0, BERLIN, "Berlin"), login(1, LISBON, "Lisbon"))
    assert one.score == pytest.approx(2313, rel=0.01)  # km between the two airports' cities, in an hour
    assert (one.context["before"], one.context["now"], one.context["before_at"]) == ("Berlin", "Lisbon", NOON)


def test_two_logins_of_one_moment_have_a_score_that_is_finite_and_none_in_a_suburb() -> None:
    (one,) = found(login(0, BERLIN), login(0, LISBON))
    assert one.score == pytest.approx(2313 * 60, rel=0.01)
    assert found(login(0, BERLIN), login(0, POTSDAM)) == []
