from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tocsin.history.land.arrow_events import PARTITION, columns_of, parse
from tocsin.project.source_file import read_source

LOGINS = read_source(Path(__file__).parents[4] / "sources" / "logins.toml")
AT = "2026-11-19T12:00:00.000001Z"


def event(number: int = 0, **columns: Any) -> bytes:
    identity = {"raw_topic": "raw.logins", "raw_partition": 1, "raw_offset": number}
    times = {"event_time": AT, "ingested_at": AT, "source": "logins", "schema_version": 1}
    return json.dumps(identity | times | {"user_id": "u", "timestamp": AT} | columns, separators=(",", ":")).encode()


def test_events_ticks_and_what_is_neither_are_told_apart() -> None:
    tick = b'{"tick":true,"event_time":"2026-11-19T12:00:01.000000Z"}'
    older = b'{"tick":true,"event_time":"2026-11-19T12:00:00.000000Z"}'
    values = [event(1), tick, older, None, b"", b"null", b"[]", b"\xff", b'{"tick":7}', event(2)]
    parsed = parse(values, [0, 1, 1, 2, 2, 2, 2, 2, 2, 3], columns_of(LOGINS))
    assert parsed.table["raw_offset"].to_pylist() == [1, 2]
    assert parsed.table[PARTITION].to_pylist() == [0, 3]
    assert parsed.table["event_time"].to_pylist() == [datetime(2026, 11, 19, 12, microsecond=1, tzinfo=UTC)] * 2
    assert parsed.ticks == {1: datetime(2026, 11, 19, 12, 0, 1, tzinfo=UTC)}
    assert parsed.unreadable == {2: 6}


@pytest.mark.parametrize(
    "odd",
    [
        event(7, user_id=5),
        event(7) + b"\n",
        event(7) + event(8),
        event(7)[:-1],
        event(7, event_time=None),
        event(7, raw_offset="x"),
        b'{"raw_topic":"\xff"}',
    ],
)
def test_one_odd_record_changes_nothing_about_the_others(odd: bytes) -> None:
    around = parse([event(1), odd, event(2)], [0, 1, 0], columns_of(LOGINS))
    alone = parse([odd], [1], columns_of(LOGINS))
    assert around.table.num_rows == 2 + alone.table.num_rows
    plain = parse([event(1), event(2)], [0, 0], columns_of(LOGINS))
    rows = around.table.to_pylist()
    assert [rows[0], rows[-1]] == plain.table.to_pylist()
    assert around.unreadable == alone.unreadable
    assert alone.table.num_rows + sum(alone.unreadable.values()) == 1


def test_nothing_is_a_table_without_rows() -> None:
    assert parse([], [], columns_of(LOGINS)).table.num_rows == 0
