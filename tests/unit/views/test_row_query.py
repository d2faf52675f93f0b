"""Reading a view touches what is asked for, however many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.views.view_scene import NOON, record, view_row, view_spec
from tocsin.views.applier import Applier
from tocsin.views.row_query import PageQuery, ViewReader
from tocsin.views.row_store import RowStore

WORDS, WINDOWS = 200, 20
LAST = NOON + timedelta(seconds=10 * (WINDOWS - 1))
_STEPS = 100


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "v.db"
    rows = [view_row(f"w{n:03}", n, window=10 * w) for w in range(WINDOWS) for n in range(WORDS)]
    with closing(RowStore(path)) as store:
        Applier(view_spec(), store, None).apply([record(row, offset) for offset, row in enumerate(rows)])
    return path


def names(reader: ViewReader, query: PageQuery) -> list[str]:
    return [row.name for row in reader.page(query).rows]


def last_page(reader: ViewReader) -> list[str]:
    cursor = reader.page(PageQuery(prefix="w199", limit=WINDOWS - 5)).cursor
    assert cursor is not None
    return names(reader, PageQuery(limit=10, cursor=cursor))


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda reader: reader.get("w150", LAST).values["count"], 150),
        (lambda reader: reader.get("w150").window_start, LAST),
        (lambda reader: names(reader, PageQuery(window=LAST, limit=3)), ["w000", "w001", "w002"]),
        (lambda reader: names(reader, PageQuery(window=NOON, prefix="w15", limit=2)), ["w150", "w151"]),
        (last_page, ["w199"] * 5),
        (lambda reader: len(reader.changes(0, "w007")[0]), WINDOWS),
    ],
)
def test_no_read_looks_at_all_rows(path: Path, read: Callable[[ViewReader], object], expected: object) -> None:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += _STEPS

    with closing(ViewReader(path)) as reader:
        reader._connection.set_progress_handler(count, _STEPS)
        assert read(reader) == expected
    assert steps < WORDS * WINDOWS
