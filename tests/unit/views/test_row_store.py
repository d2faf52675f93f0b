"""The SQLite file of a view: others read it with plain columns, and no read looks at more rows than are asked for."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.views.view_scene import NOON, record, view_row, view_spec
from tocsin.views.applier import Applier
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import RowStore


def selected(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        return reader.execute(query).fetchall()


def test_others_read_plain_columns_of_the_rows_that_count(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    with closing(RowStore(path, "windowed_counts")) as store:
        applier = Applier(view_spec(), store, None)
        applier.apply([record(view_row("a", 1), 0), record(view_row("a'b", None), 1)])
        everything = "SELECT * FROM windowed_counts ORDER BY word"
        start, end = "2026-11-19 12:00:00.000", "2026-11-19 12:00:10.000"
        assert selected(path, everything) == [(start, end, "a", 1, 0), (start, end, "a'b", None, 0)]
        applier.apply([record(view_row("a", 2, share=0.5, tags=["x"]), 2)])
        columns = "SELECT word, count, share, tags, final FROM windowed_counts WHERE word = 'a'"
        assert selected(path, columns) == [("a", 2, 0.5, '["x"]', 0)]
        store.switch("b")
        assert selected(path, everything) == []
        applier.apply([record(view_row("c", 3, build="b"), 3)])
    with closing(RowStore(path, "others")) as store:
        Applier(view_spec(), store, None).apply([record(view_row("d", 4, build="b"), 4)])
    assert selected(path, "SELECT word, count FROM others ORDER BY word") == [("c", 3), ("d", 4)]
    assert selected(path, "SELECT name FROM sqlite_schema WHERE type = 'view'") == [("others",)]


def test_a_row_without_windows_has_no_times_and_a_table_of_ours_is_not_hidden(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    with closing(RowStore(path, "stock")) as store:
        Applier(view_spec(window=None), store, None).apply([record(view_row("a", 1, window=None), 0)])
    assert selected(path, "SELECT * FROM stock") == [("a", 1)]
    for table in ("Rows", "by_name", "sqlite_words"):
        with closing(RowStore(tmp_path / f"{table}.db", table)) as store:
            Applier(view_spec(), store, None).apply([record(view_row("a", 1), 0)])
        assert len(selected(tmp_path / f"{table}.db", "SELECT * FROM rows")) == 1


def test_a_value_called_final_is_shown_as_it_is(tmp_path: Path) -> None:
    with closing(RowStore(tmp_path / "v.db", "counts")) as store:
        Applier(view_spec(), store, None).apply([record(view_row("a", 1, final=7.5), 0)])
    assert selected(tmp_path / "v.db", "SELECT word, count, final FROM counts") == [("a", 1, 7.5)]


@pytest.mark.parametrize("value", ["::1", "50%", "%3A", "", "a/b c", "a\0b"])
def test_a_value_that_is_the_whole_key_finds_its_row(tmp_path: Path, value: str) -> None:
    path = tmp_path / "v.db"
    with closing(RowStore(path)) as store:
        Applier(view_spec(), store, None).apply([record(view_row(value, 1), 0), record(view_row("plain", 2), 1)])
    with closing(ViewReader(path)) as reader:
        row = reader.get(value)
        assert row is not None
        assert (row.key, reader.get(row.name)) == ({"word": value}, row)


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


def names(reader: ViewReader, **wanted: Any) -> list[str]:
    return [row.name for row in reader.page(**wanted).rows]


def last_page(reader: ViewReader) -> list[str]:
    cursor = reader.page(prefix="w199", limit=WINDOWS - 5).cursor
    assert cursor is not None
    return names(reader, limit=10, cursor=cursor)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda reader: reader.get("w150", LAST).values["count"], 150),
        (lambda reader: reader.get("w150").window_start, LAST),
        (lambda reader: names(reader, window=LAST, limit=3), ["w000", "w001", "w002"]),
        (lambda reader: names(reader, window=NOON, prefix="w15", limit=2), ["w150", "w151"]),
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
