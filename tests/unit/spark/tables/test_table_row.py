"""What a record says of a row, and which records say nothing."""

import json
from typing import Any

import pytest

from tests.rig.samples.segments import segments
from tocsin.spark.tables.table_row import LONGEST, TableRow, UnusableRow, read_row

KINDS = segments(
    key=("a", "b"),
    columns={"a": "string", "b": "int", "c": "boolean", "d": "bigint", "e": "double", "f": "timestamp"},
    optional=frozenset({"c", "d", "e", "f"}),
)
WHOLE = {"a": "é", "b": 7, "c": True, "d": 2**40, "e": 1, "f": "1970-01-01T00:00:01.5Z"}


def read(value: Any, **fields: Any) -> TableRow | None:
    return read_row(json.dumps(value).encode(), segments(**fields) if fields else KINDS)


def test_values_stand_in_the_order_of_the_columns() -> None:
    assert read({**WHOLE, "more": [1]}) == TableRow('["é",7]', ["é", 7, True, 2**40, 1.0, 1_500_000])
    assert read({"A": "x", "a": "y", "b": 7, "D": 5}) == TableRow('["y",7]', ["y", 7, None, 5, None, None])
    assert read({"b": 7, "a": "x", "c": None}) == TableRow('["x",7]', ["x", 7, None, None, None, None])


def test_a_tick_is_no_row() -> None:
    assert read_row(b'{"tick":true,"event_time":"2026-01-01T00:00:00.000000Z"}', KINDS) is None


def test_a_row_of_a_view_has_its_columns_at_one_level_and_its_build() -> None:
    row = {"key": {"a": "x", "b": 1}, "values": {"e": 2.5}, "build": "b1", "window_start": None}
    assert read(row, **{**KINDS.model_dump(), "topic": None, "view": "stock"}) == TableRow(
        '["x",1]', ["x", 1, None, None, 2.5, None], "b1"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff", "is not JSON"),
        (b"[" * 50_000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"a":"' + b"x" * LONGEST + b'"}', "is longer than"),
        ({**WHOLE, "a": None}, "has no 'a'"),
        ({"a": "x"}, "has no 'b'"),
        ({**WHOLE, "a": 1}, "'a' is no string: '1'"),
        ({**WHOLE, "b": 2**31}, "'b' is no int"),
        ({**WHOLE, "b": True}, "'b' is no int"),
        ({**WHOLE, "c": "true"}, "'c' is no boolean"),
        ({**WHOLE, "e": "1"}, "'e' is no double"),
        ({**WHOLE, "f": "2026-01-01T00:00:00"}, "'f' is no timestamp"),
        ({**WHOLE, "f": 5}, "'f' is no timestamp"),
        (b'{"a":"x","b":1,"e":NaN}', "'e' is no double"),
        (b'{"a":"x\\ud800","b":1}', "is not JSON"),
        (b'{"a":"x","b":1,"a":"y"}', "names the field 'a' twice"),
    ],
)
def test_a_record_that_is_no_row_says_why(value: Any, reason: str) -> None:
    with pytest.raises(UnusableRow, match=reason):
        read_row(value if isinstance(value, bytes) else json.dumps(value).encode(), KINDS)
