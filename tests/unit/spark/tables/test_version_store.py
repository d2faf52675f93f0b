"""Versions of rows: when each holds, what a late record may change, and what survives a crash."""

import random
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.segments import segments
from tocsin.declare.model.errors import TransientError
from tocsin.spark.tables.table_row import TableRow
from tocsin.spark.tables.version_store import RowChange, VersionStore

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SETTLE = 120


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VersionStore]:
    opened = VersionStore(tmp_path / "versions.db", segments())
    yield opened
    opened.close()


def put(customer: str, segment: str, at: float, record: str | None = None) -> RowChange:
    row = TableRow(f'["{customer}"]', [customer, segment, 1.0])
    return RowChange(customer if record is None else record, row, NOON + at * SECOND)


def end(record: str, at: float) -> RowChange:
    return RowChange(record, None, NOON + at * SECOND)


def apply(store: VersionStore, *changes: RowChange, now: float = 10_000, number: int = 1) -> bool:
    return store.apply(changes, {0: len(changes)}, NOON + now * SECOND, number)


def held(store: VersionStore) -> list[tuple[Any, Any, Any]]:
    """Segment, and from when to when it holds, in seconds since noon."""
    start = int(NOON.timestamp() * 1e6)
    return [
        (one.values[1], (one.valid_from - start) / 1e6, one.valid_to and (one.valid_to - start) / 1e6)
        for one in store.versions()
    ]


def test_a_row_holds_from_a_while_after_its_record_until_the_next_one(store: VersionStore) -> None:
    assert apply(store, put("a", "student", 0), put("a", "family", 60), put("b", "student", 5), end("b", 50))
    assert held(store) == [("student", 120, 180), ("family", 180, None), ("student", 125, 170)]
    assert store.offsets() == {0: 4}


def test_a_repeated_record_changes_nothing(store: VersionStore) -> None:
    apply(store, put("a", "student", 0))
    assert not apply(store, put("a", "student", 40), put("a", "student", 50))
    assert held(store) == [("student", 120, None)]


def test_a_record_from_the_future_holds_as_if_it_came_now(store: VersionStore) -> None:
    apply(store, put("a", "student", 99_999), now=30)
    assert held(store) == [("student", 150, None)]


@pytest.mark.parametrize(("made_of", "until"), [({"topic": "segments"}, 130), ({"topic": None, "source": "s"}, None)])
def test_a_record_under_the_same_kafka_key_ends_the_row_of_another_key_but_for_events(
    tmp_path: Path, made_of: dict[str, str | None], until: int | None
) -> None:
    store = VersionStore(tmp_path / "versions.db", segments(**made_of))
    apply(store, put("a", "student", 0, record="r"), put("b", "family", 10, record="r"))
    assert held(store) == [("student", 120, until), ("family", 130, None)]
    store.close()


def test_times_that_go_back_leave_no_overlap(store: VersionStore) -> None:
    apply(store, put("a", "first", 100), put("a", "second", 40), put("a", "third", 300))
    assert held(store) == [("first", 220, 220.000001), ("second", 220.000001, 420), ("third", 420, None)]
    apply(store, end("a", 100), put("a", "fourth", 50))
    assert held(store)[2:] == [("third", 420, 420.000001), ("fourth", 420.000001, None)]


def test_what_was_told_of_the_past_stays_when_the_job_was_away(store: VersionStore) -> None:
    apply(store, put("a", "student", 0), put("b", "old", 0), number=1)
    # Published as 1, then away for an hour: meanwhile a and b were joined as they were.
    apply(store, put("a", "family", 10), put("a", "senior", 20), end("b", 30), put("c", "new", 30), number=2, now=3600)
    store.postpone(1, NOON + 3600 * SECOND)
    late = 3600 + SETTLE * 3 / 4
    assert held(store) == [
        ("student", 120, late), ("senior", late, None), ("old", 120, late), ("new", late, None),
    ]  # fmt: skip
    assert store.counts["later"] == 3
    store.postpone(2, NOON + 7200 * SECOND)  # 2 has told them now
    assert held(store)[1] == ("senior", late, None)


def test_what_comes_in_time_is_not_postponed(store: VersionStore) -> None:
    apply(store, put("a", "student", 0), number=1)
    apply(store, put("a", "family", 1000), number=2, now=1010)
    store.postpone(1, NOON + 1020 * SECOND)
    assert held(store) == [("student", 120, 1120), ("family", 1120, None)]
    assert store.counts["later"] == 0


def test_no_version_that_was_published_ever_changes_before_its_publication(store: VersionStore) -> None:
    """Random changes and publications, some of them late: each snapshot agrees with those before on what was joined."""
    told: list[tuple[float, list[tuple[str, str, float, float]]]] = []
    chance, now = random.Random(5), 0.0
    for number in range(1, 120):
        changes = []
        for _ in range(chance.randrange(4)):
            customer, at = chance.choice("abc"), now - chance.random() * chance.choice([1, 300])
            changes.append(end(customer, at) if chance.random() < 0.2 else put(customer, str(number), at))
        apply(store, *changes, now=now, number=number)
        now += chance.choice([1, 5, 400])
        if number > 1:
            store.postpone(number - 1, NOON + now * SECOND)
        rows = sorted(held_by_customer(store))
        for before, snapshot in told:
            # Whoever joined by `snapshot` had events up to three quarters of `settle` after the next publication.
            assert cut(rows, before) == cut(snapshot, before), number
        told = [(now + SETTLE * 3 / 4, rows)]


def held_by_customer(store: VersionStore) -> list[tuple[str, str, float, float]]:
    start = int(NOON.timestamp() * 1e6)
    return [
        (one.values[0], one.values[1], (one.valid_from - start) / 1e6,
         float("inf") if one.valid_to is None else (one.valid_to - start) / 1e6)
        for one in store.versions()
    ]  # fmt: skip


def cut(rows: list[tuple[str, str, float, float]], end: float) -> list[tuple[str, str, float, float]]:
    """What they say of the time before `end`."""
    return [(customer, segment, begin, min(until, end)) for customer, segment, begin, until in rows if begin < end]


def test_reading_again_ends_what_is_not_there_any_more(store: VersionStore) -> None:
    apply(store, put("a", "student", 0), put("b", "student", 0))
    assert store.end_reading(NOON, 1)
    assert store.is_complete
    store.begin_again()
    assert store.offsets() == {}
    apply(store, put("a", "student", 500), number=2)
    assert store.end_reading(NOON + 600 * SECOND, 2)
    assert held(store) == [("student", 120, None), ("student", 120, 720)]
    assert not store.end_reading(NOON + 601 * SECOND, 3)


def test_more_rows_than_allowed_are_counted_and_left_out(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "versions.db", segments(max_rows=2))
    apply(store, put("a", "x", 0), put("b", "x", 0), put("c", "x", 0), put("b", "y", 9))
    assert held(store) == [("x", 120, None), ("x", 120, None)]
    assert store.counts["over_max_rows"] == 2
    store.close()


def test_what_ended_long_ago_is_forgotten(store: VersionStore) -> None:
    apply(store, put("a", "student", 0), put("a", "family", 60))
    day = 24 * 3600
    assert store.forget(NOON + (60 * day + 179) * SECOND) == 0
    assert store.forget(NOON + (60 * day + 181) * SECOND) == 1
    assert held(store) == [("family", 180, None)]
    assert store.size == 1


def test_all_is_there_again_after_a_restart_and_gone_with_other_columns(tmp_path: Path, store: VersionStore) -> None:
    apply(store, put("a", "student", 0))
    store.close()
    again = VersionStore(tmp_path / "versions.db", segments(settle=timedelta(minutes=5)))
    assert (held(again), again.size, again.offsets()) == ([("student", 120, None)], 1, {0: 1})
    again.close()
    other = VersionStore(tmp_path / "versions.db", segments(columns={"customer_id": "string", "segment": "string"}))
    assert (held(other), other.size, other.offsets()) == ([], 0, {})
    other.close()


def test_a_change_that_cannot_be_written_is_not_half_there(tmp_path: Path, store: VersionStore) -> None:
    apply(store, put("a", "student", 0))
    blocker = sqlite3.connect(tmp_path / "versions.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store._connection.execute("PRAGMA busy_timeout=10")
    with pytest.raises(TransientError, match="locked"):
        apply(store, put("a", "family", 9), put("b", "family", 9))
    blocker.close()
    assert (held(store), store.size) == ([("student", 120, None)], 1)
