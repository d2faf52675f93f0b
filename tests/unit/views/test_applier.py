import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.views.view_scene import NOON, SECOND, MemorySink, record, view_row, view_spec
from tocsin.declare.model.errors import TransientError
from tocsin.views.applier import Applier
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import RowStore

A = view_row("a", 1).identity


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "views" / "word_counts.db"


@pytest.fixture
def store(path: Path) -> Iterator[RowStore]:
    opened = RowStore(path)
    yield opened
    opened.close()


def seen(path: Path, build: str = "") -> dict[str, Any]:
    """What readers see: the values of `count` by name."""
    reader = ViewReader(path)
    rows = reader.page(limit=1000).rows
    reader.close()
    assert {row.build for row in rows} <= {build or row.build for row in rows}
    return {row.name: row.values["count"] for row in rows}


def test_the_last_version_of_a_row_is_kept_in_both(store: RowStore, path: Path) -> None:
    sink = MemorySink()
    applier = Applier(view_spec(), store, sink)
    applier.apply([record(view_row("a", 1), 0), record(view_row("b", 5), 1), record(view_row("a", 2), 2)])
    applier.apply([record(view_row("a", 2), 2), record(view_row("a", 3), 3)])
    assert seen(path) == sink.counts() == {"a": 3, "b": 5}
    assert store.offsets() == sink.offsets_there == {0: 4}
    applier.apply([record(None, 4, key=A)])
    assert seen(path) == sink.counts() == {"b": 5}


def test_a_crash_between_sink_and_file_shows_no_older_version_again(store: RowStore, path: Path) -> None:
    sink = MemorySink()
    first = [record(view_row("a", 1), 0), record(view_row("a", 2), 1)]
    Applier(view_spec(), store, sink).apply(first[:1])
    before = store.offsets()
    dying = Applier(view_spec(), store, sink)

    def full(*_: object, **__: object) -> None:
        raise TransientError("disk full")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(TransientError):
        patch.setattr(store, "apply", full)
        dying.apply(first[1:])
    assert (store.offsets(), sink.offsets_there) == (before, {0: 2})
    again = Applier(view_spec(), store, sink)
    again.check_sink()
    again.apply([*first, record(view_row("b", 1), 2)])
    assert seen(path) == sink.counts() == {"a": 2, "b": 1}
    assert sink.versions == [("a", 1), ("a", 2), ("b", 1)]
    assert again.counts["refills"] == 0


@pytest.mark.parametrize("offsets", [None, {}, {0: 1}])
def test_a_sink_that_lost_what_it_had_is_filled(store: RowStore, offsets: Any) -> None:
    sink = MemorySink()
    applier = Applier(view_spec(), store, sink)
    applier.apply([record(view_row("a", 1), 0), record(view_row("b", 1), 1)])
    sink.rows, sink.offsets_there = {}, offsets
    applier.apply([record(view_row("c", 1), 2)])
    assert sink.counts() == {"a": 1, "b": 1, "c": 1}
    sink.rows, sink.offsets_there = {}, offsets
    applier.check_sink()
    assert sink.counts() == {"a": 1, "b": 1, "c": 1}
    assert applier.counts["refills"] == 2
    renamed = Applier(view_spec(table="other"), store, sink)
    sink.rows = {}
    for _ in range(2):
        renamed.check_sink()
        assert (sink.counts(), renamed.counts["refills"]) == ({"a": 1, "b": 1, "c": 1}, 1)


def test_what_is_no_row_is_counted_and_left_out(store: RowStore, path: Path) -> None:
    applier = Applier(view_spec(), store, None)
    bad = [
        record(None, 0, value=b"\xff"),
        record(None, 1, value=b"{}"),
        record(view_row("x", 1), 2, value=b'{"key":{"word":null},"values":{},"build":"a"}'),
        record(view_row("x", 1), 3, value=b'{"key":{"other":1},"values":{},"build":"a"}'),
        record(None, 4, value=view_row("x" * 1_000_000, 1).model_dump_json().encode(), key="long"),
    ]
    applier.apply([*bad, record(view_row("nan", math.nan, more=[math.inf, 1.5]), 5)])
    assert applier.counts["unusable"] == 4
    assert {len(name): count for name, count in seen(path).items()} == {1_000_000: 1, 3: None}
    assert store.offsets() == {0: 6}


def test_a_new_build_fills_while_readers_see_the_one_before(store: RowStore, path: Path) -> None:
    sink = MemorySink()
    applier = Applier(view_spec(), store, sink)
    applier.apply([record(view_row("a", 1), 0), record(view_row("gone", 1), 1)])
    applier.apply([record(view_row("a", 7, build="b"), 2), record(view_row("new", 7, build="b"), 3)])
    assert seen(path, "a") == sink.counts() == {"a": 1, "gone": 1}
    (left,) = applier.switch_writes("b")
    assert (left.row, left.identity, left.offset) == (None, view_row("gone", 1).identity, 1)
    applier.switch("b")
    assert seen(path, "b") == sink.counts() == {"a": 7, "new": 7}
    reopened = Applier(view_spec(), store, sink)
    (repair,) = reopened.apply([record(view_row("a", 2), 4)])
    assert (repair.row and repair.row.values, repair.offset) == ({"count": 7}, 4)
    assert seen(path, "b") == {"a": 7, "new": 7}
    assert reopened.counts["stale"] == 1


def test_a_build_whose_name_comes_back_is_read_again(store: RowStore, path: Path) -> None:
    applier = Applier(view_spec(), store, None)
    applier.apply([record(view_row("a", 1), 0)])
    applier.apply([record(view_row("a", 2, build="b"), 1)])
    applier.switch("b")
    records = [record(view_row("a", 3), 2)]
    applier.apply(records)
    assert not applier.expect("a")
    assert store.offsets() == {}
    assert applier.expect("a")
    applier.apply(records)
    applier.switch("a")
    assert seen(path, "a") == {"a": 3}


def test_a_removal_of_an_older_version_does_not_count(store: RowStore, path: Path) -> None:
    applier = Applier(view_spec(), store, None)
    applier.apply([record(view_row("a", 1), 0)])
    (repair,) = applier.apply([record(view_row("a", 2), 1), record(None, 2, key=A, removes=0)])
    assert repair.row is not None and repair.row.values == {"count": 2}
    assert seen(path) == {"a": 2}
    assert applier.apply([record(None, 3, key=A, removes=1)]) == []
    assert seen(path) == {}


def test_rows_of_closed_windows_are_final_and_old_ones_are_removed(store: RowStore, path: Path) -> None:
    sink = MemorySink()
    applier = Applier(view_spec(keep=60 * SECOND), store, sink)
    applier.apply([record(view_row("a", 1, window=start), start) for start in (0, 10, 20)])
    applier.finish(NOON + 20 * SECOND)
    reader = ViewReader(path)
    finals = [row.is_final for row in reader.page().rows]
    assert finals == [True, True, False] == [row.is_final for row in sink.rows.values()]
    applier.apply([record(view_row("late", 1, window=0), 21)])
    assert [row.is_final for row in reader.page().rows] == [True, True, False, True]
    reader.close()
    assert applier.find_expired(NOON + 70 * SECOND) == []
    old = applier.find_expired(NOON + 75 * SECOND)
    assert [removal.offset for removal in old] == [0, 21]
    applier.apply([record(None, 30 + n, key=gone.identity, removes=gone.offset) for n, gone in enumerate(old)])
    assert seen(path) == {"a": 1}


def test_a_page_is_stable_while_rows_come(store: RowStore, path: Path) -> None:
    applier = Applier(view_spec(), store, None)
    applier.apply([record(view_row(f"w{n}", n, window=10 * (n % 2)), n) for n in range(10)])
    reader = ViewReader(path)
    first = reader.page(prefix="w", limit=4)
    applier.apply([record(view_row("w00", 0), 20), record(view_row("w9x", 0), 21), record(view_row("x", 0), 22)])
    names = [row.name for row in first.rows]
    while first.cursor:
        first = reader.page(prefix="w", limit=4, cursor=first.cursor)
        names += [row.name for row in first.rows]
    assert names == [f"w{n}" for n in range(10)] + ["w9x"]
    assert [row.name for row in reader.page(window=NOON + 10 * SECOND).rows] == [
        "w1",
        "w3",
        "w5",
        "w7",
        "w9",
    ]
    assert reader.nearest("w9xx") == "w9x"
    row = reader.get("w3")
    assert row is not None and row.window_start == NOON + 10 * SECOND
    assert reader.get("w3", NOON) is None
    with pytest.raises(ValueError, match="cursor"):
        reader.page(cursor="nonsense")
    reader.close()


def test_changes_come_in_order_and_whole(store: RowStore, path: Path) -> None:
    applier = Applier(view_spec(), store, None)
    applier.apply([record(view_row("a", 1), 0)])
    reader = ViewReader(path)
    rows, reached = reader.changes(0)
    assert [row.name for row in rows] == ["a"]
    assert reader.changes(reached)[0] == []
    applier.apply([record(view_row(f"b{n}", 1), n + 1) for n in range(5)])
    applier.apply([record(view_row("a", 2), 9)])
    rows, reached = reader.changes(reached, limit=6)
    assert len(rows) >= 5
    rows += reader.changes(reached)[0]
    assert [row.name for row in rows] == ["b0", "b1", "b2", "b3", "b4", "a"]
    assert [row.values for row in reader.changes(0, "a")[0]] == [{"count": 2}]
    reader.close()


def test_what_another_process_has_applied_is_not_applied_again(store: RowStore, path: Path) -> None:
    sink, same_sink, other_store = MemorySink(), MemorySink(), RowStore(path)
    first, second = Applier(view_spec(), store, sink), Applier(view_spec(), other_store, same_sink)
    given = [record(view_row("a", n), n) for n in range(4)]
    first.apply(given[:2])
    same_sink.rows, same_sink.versions, same_sink.offsets_there = sink.rows, sink.versions, sink.offsets_there
    second.positions([0])
    second.apply([*given[2:], record(view_row("b", 1), 0, partition=1)])
    sink.offsets_there = same_sink.offsets_there
    first.apply([*given[2:], record(view_row("a", 4), 4)])  # had them in hand when the partition was taken from it
    assert sink.versions == [("a", 1), ("a", 3), ("b", 1), ("a", 4)]
    assert seen(path) == sink.counts() == {"a": 4, "b": 1}
    assert (first.counts["taken"], second.counts["taken"]) == (2, 0)
    assert first.counts["refills"] + second.counts["refills"] == 0
    assert store.offsets() == sink.offsets_there == {0: 5, 1: 1}
    other_store.close()


def test_a_process_goes_back_with_the_one_that_lets_the_topic_be_read_again(store: RowStore, path: Path) -> None:
    other_store = RowStore(path)
    first, second = Applier(view_spec(), store, None), Applier(view_spec(), other_store, None)
    first.apply([record(view_row("a", 1), 0), record(view_row("b", 1), 1)])
    second.positions()
    first.restart()
    second.apply([record(view_row("a", 2), 2)])
    assert second.is_set_back
    assert (second.positions(), seen(path)) == ({}, {})
    second.apply([record(view_row("a", 1), 0)])
    assert not second.is_set_back
    assert seen(path) == {"a": 1}
    other_store.close()


def test_what_history_gives_waits_for_its_job_and_outlives_the_switch_to_another_build(
    store: RowStore, path: Path
) -> None:
    sink = MemorySink()
    applier = Applier(view_spec(), store, sink)
    applier.apply([record(view_row("a", 7, build="history-1"), 0)])
    assert (applier.current, sink.rows) == (None, {}), "nobody reads it before it is whole"
    applier.apply([record(view_row("b", 1, build="first"), 1)])
    assert (seen(path), sink.counts()) == ({"b": 1}, {"b": 1})
    applier.apply([record(view_row("b", 2, build="second"), 2)])
    applier.switch("second", {"history-1"})
    applier.apply([record(view_row("b", 3, build="history-1"), 3)])
    assert (seen(path), applier.counts["stale"]) == ({"b": 2}, 0)
    applier.switch("history-1")
    assert seen(path) == sink.counts() == {"a": 7, "b": 3}
    applier.apply([record(view_row("a", 9, build="history-2"), 4), record(view_row("a", 8, build="third"), 5)])
    applier.switch("third", {"history-2"})
    assert {row.build for row in store.find([A])} == {"history-2", "third"}, "what is over goes"
    applier.switch("history-2")
    assert {row.build for row in store.find([A])} == {"history-2"}
    applier.apply([record(view_row("a", 4, build="history-3"), 6), record(view_row("c", 1, build="history-3"), 7)])
    applier.apply([record(view_row("a", 5, build="fourth"), 8), record(view_row("c", 2, build="history-3"), 9)])
    assert [(one.row, one.offset) for one in applier.switch_writes("fourth")] == [(None, 9)], "it was given up"
    applier.switch("fourth")
    assert {row.build for row in [*store.find([A]), *store.rows("history-3")]} == {"fourth"}


def test_the_topic_gets_back_what_the_stream_wrote_over_it_meanwhile(store: RowStore, path: Path) -> None:
    applier = Applier(view_spec(), store, None)
    applier.apply([record(view_row("a", 1), 0), record(view_row("a", 7, build="history-1"), 1)])
    applier.apply([record(view_row("a", 2), 2), record(view_row("b", 2, build="history-1"), 3)])
    (repair,) = applier.switch_writes("history-1")
    assert repair.row is not None and (repair.row.build, repair.row.values) == ("history-1", {"count": 7})
    applier.switch("history-1")
    applier.apply([record(view_row("a", 7, build="history-1"), 4)])
    assert seen(path) == {"a": 7, "b": 2}


def test_a_row_that_readers_lose_stays_in_the_build_that_is_to_come(store: RowStore, path: Path) -> None:
    sink = MemorySink()
    applier = Applier(view_spec(), store, sink)
    applier.apply([record(view_row("a", 1), 0), record(view_row("a", 5, build="history-1"), 1)])
    (repair,) = applier.apply([record(None, 2, key=A, removes=0)])
    assert repair.row is not None
    assert (seen(path), sink.counts()) == ({}, {}), "it is older than the view keeps it, and that counts once"
    assert (repair.row.build, repair.row.values) == ("history-1", {"count": 5})
    assert [row.build for row in store.find([A])] == ["history-1"]
