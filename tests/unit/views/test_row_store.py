"""The SQLite file of a view, as others read it: a view of SQL with plain columns."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.unit.views.view_scene import record, view_row, view_spec
from tocsin.views.applier import Applier
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
    with closing(RowStore(tmp_path / "rows.db", "Rows")) as store:
        Applier(view_spec(window=None), store, None).apply([record(view_row("a", 1, window=None), 0)])
    assert len(selected(tmp_path / "rows.db", "SELECT * FROM rows")) == 1
