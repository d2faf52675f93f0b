"""The generator's own promises, since every expectation of the larger tests comes from it."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.dev.generator import FAILED, Burst, Traffic, burst_times, parse_burst, window_start

START = datetime(2026, 1, 1, 12, 0, 8, 500_000, tzinfo=UTC)


def test_the_same_seed_gives_the_same_lines() -> None:
    traffic = Traffic(start=START, seconds=20, bad_share=0.1, bursts=(Burst(user="mallory", n=60),))
    assert list(traffic.lines()) == list(traffic.lines())
    other = Traffic(start=START, seconds=20, bad_share=0.1, seed=1)
    assert list(other.lines()) != list(traffic.lines())


def test_lines_come_in_order_at_the_rate() -> None:
    lines = list(Traffic(start=START, seconds=30, rate=40, bursts=(Burst(user="m", n=60),)).lines())
    assert len(lines) == 30 * 40 + 60
    assert all(a.at <= b.at for a, b in pairwise(lines))


def test_endless_traffic_keeps_its_burst() -> None:
    lines = islice(Traffic(start=START, bursts=(Burst(user="mallory", n=60),)).lines(), 500)
    assert sum(line.user == "mallory" for line in lines) == 60


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    st.integers(1, 500),
    st.floats(0, 100),
)
def test_a_burst_lies_in_one_window(start: datetime, n: int, at: float) -> None:
    times = burst_times(start, Burst(user="m", n=n, at=timedelta(seconds=at)))
    assert len(times) == n
    assert len({window_start(moment) for moment in times}) == 1
    assert min(times) >= start + timedelta(seconds=at)
    assert max(times) - start < timedelta(seconds=at + 6)


def test_windows_begin_where_spark_begins_them() -> None:
    assert window_start(START) == datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert window_start(datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)) == datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)


def test_the_background_alone_finds_nothing() -> None:
    lines = Traffic(start=START, seconds=300, rate=100, failed_share=0.2).lines()
    failed = Counter((window_start(line.at), line.user) for line in lines if line.action == FAILED)
    assert max(failed.values()) <= 50


def test_bad_lines_are_of_every_kind_and_belong_to_nobody() -> None:
    lines = list(Traffic(start=START, seconds=100, bad_share=0.2).lines())
    bad = Counter(line.reason for line in lines if line.reason is not None)
    assert len(bad) == 8
    assert max(bad.values()) - min(bad.values()) <= 1
    assert 0.15 < bad.total() / len(lines) < 0.25
    assert all((line.user is None) == (line.reason is not None) for line in lines)


@pytest.mark.parametrize("text", ["", "user=m", "n=5", "user=m,n=x", "user=m,n=0", "user=m,n=5,rate=3", "user=,n=5"])
def test_what_is_no_burst(text: str) -> None:
    with pytest.raises(ValueError, match=r"write user=mallory,n=120"):
        parse_burst(text)


def test_a_burst_as_it_is_written() -> None:
    assert parse_burst("user=mallory,n=120") == Burst(user="mallory", n=120)
    assert parse_burst("user=mallory, n=120, at=30") == Burst(user="mallory", n=120, at=timedelta(seconds=30))
