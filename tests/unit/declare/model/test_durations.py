"""Windows as they are counted: the moments at which clocks of places change are known from the places' own rules."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pytest

from tocsin.declare.model.durations import (
    closed_before,
    days_text,
    end_of,
    first_number,
    last_number,
    longest,
    reach,
    start,
    zone_of,
)


@dataclass(frozen=True)
class Declared:
    time_zone: str = ""
    window: timedelta | None = timedelta(days=1)
    slide: timedelta | None = None


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "moment", "begin", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T12:00", "2026-03-28T23:00", 23),
        ("Europe/Berlin", "2026-10-25T12:00", "2026-10-24T22:00", 25),
        ("Europe/Berlin", "2026-10-24T22:00", "2026-10-24T22:00", 25),
        ("Europe/Berlin", "2026-10-24T21:59:59.999999", "2026-10-23T22:00", 24),
        ("America/New_York", "2026-11-01T03:59", "2026-10-31T04:00", 24),
        ("Africa/Cairo", "2026-04-24T12:00", "2026-04-23T22:00", 23),  # there is no midnight: the day begins at one
        ("America/Havana", "2026-11-01T05:30", "2026-11-01T04:00", 25),  # there are two midnights
        ("America/Sao_Paulo", "2018-02-18T02:30", "2018-02-17T02:00", 25),  # eleven o'clock comes twice, the day before
        ("Antarctica/Troll", "2026-10-25T12:00", "2026-10-24T22:00", 26),
        ("+05:30", "2026-01-01T18:29", "2025-12-31T18:30", 24),
        ("", "1969-12-31T23:00", "1969-12-31T00:00", 24),
    ],
)
def test_a_day_lasts_from_midnight_to_midnight_of_its_clock(zone: str, moment: str, begin: str, hours: int) -> None:
    spec = Declared(zone)
    number = last_number(spec, at(moment))
    assert start(spec, number) == at(begin)
    assert end_of(spec, at(begin)) == start(spec, number + 1) == at(begin) + timedelta(hours=hours)
    assert timedelta(hours=hours) <= longest(spec)


def test_a_window_is_closed_when_it_has_ended() -> None:
    berlin, long_day = Declared("Europe/Berlin"), at("2026-10-24T22:00")
    assert closed_before(berlin, at("2026-10-25T22:59:59")) == long_day, "its last hour is open"
    assert closed_before(berlin, at("2026-10-25T23:00")) == long_day + timedelta(hours=25)
    ten = Declared(window=timedelta(seconds=10))
    assert closed_before(ten, at("2026-10-25T00:00:10")) == at("2026-10-25T00:00:00.000001")


def test_a_day_of_history_reads_as_far_as_its_last_window_lasts() -> None:
    assert reach(Declared("Europe/Berlin"), at("2026-10-25T00:00")) == timedelta(hours=23), "begun at 22:00, 25 hours"
    assert reach(Declared("Europe/Berlin"), at("2026-03-29T00:00")) == timedelta(hours=22)
    assert reach(Declared("+00:00"), at("2026-03-29T00:00")) == timedelta(0)


def test_windows_are_numbered_through() -> None:
    berlin = Declared("Europe/Berlin")
    number = first_number(berlin, at("2026-03-28T23:00"))
    assert first_number(berlin, at("2026-03-28T23:00:00.000001")) == number + 1
    assert last_number(berlin, at("2026-03-28T22:59:59")) == number - 1


@pytest.mark.parametrize(
    "name", ["EST", "Europe/Bonn", "Berlin", "+1", "+25:00", "../etc/passwd", "/etc/passwd", "Europe/"]
)
def test_a_name_that_is_no_place_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no time zone; write a place"):
        zone_of(name)


@pytest.mark.parametrize(
    ("days", "text"),
    [
        ([17], "2026-06-17"),
        ([29, 17], "2026-06-17, 2026-06-29 (2 days)"),
        ([17, 18, 19, 19], "2026-06-17 to 2026-06-19 (3 days)"),
        ([29, 18, 17, 30, 3], "2026-06-03, 2026-06-17 to 2026-06-18, 2026-06-29 to 2026-06-30 (5 days)"),
        ([1, 3, 5, 7, 9], "2026-06-01 to 2026-06-09 (5 of the 9 days)"),
    ],
)
def test_days_are_written_as_what_follows_one_another(days: list[int], text: str) -> None:
    assert days_text(date(2026, 6, day) for day in days) == text
