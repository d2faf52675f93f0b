"""Counters of instances: the total follows the latest value of each, whatever comes, comes twice, restarts or goes."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.views.view_scene import NOON, SECOND, MemorySink, record
from tests.unit.views.view_scene import view_spec as words_spec
from tocsin.declare.model.view import ViewSpec
from tocsin.views.applier import Applier
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import RowStore
from tocsin.views.stored_row import RowRecord, ViewRow

KEEP = 60 * SECOND


def counters(**fields: Any) -> ViewSpec:
    known: dict[str, Any] = {"key": ("instance", "metric"), "total": ("metric",), "window": None, "keep": KEEP}
    return words_spec(**known | fields)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RowStore]:
    opened = RowStore(tmp_path / "v.db")
    yield opened
    opened.close()


def part(instance: str, value: Any, period: int = 0, build: str = "a", metric: str = "requests") -> ViewRow:
    start = NOON + period * KEEP
    key = {"instance": instance, "metric": metric}
    return ViewRow(key=key, window_start=start, window_end=start + KEEP, values={"count": value}, build=build)


def seen(path: Path) -> dict[str, Any]:
    reader = ViewReader(path / "v.db")
    rows = reader.page(limit=1000).rows
    reader.close()
    assert all(row.window_start is None and ".parts" not in row.build for row in rows)
    return {row.name: row.values["count"] for row in rows}


def test_a_new_value_takes_the_place_of_the_old_one(store: RowStore, tmp_path: Path) -> None:
    sink = MemorySink()
    applier = Applier(counters(), store, sink)
    applier.apply([record(part("web.1", 5), 0), record(part("web.2", 7), 1), record(part("x", 1, metric="m:"), 2)])
    assert seen(tmp_path) == sink.counts() == {"requests": 12, "m%3A": 1}
    applier.apply([record(part("web.1", 6), 3), record(part("web.1", 6), 4)])
    assert seen(tmp_path) == sink.counts() == {"requests": 13, "m%3A": 1}
    applier.apply([record(part("web.1", 0), 5)])  # it restarts
    assert seen(tmp_path) == sink.counts() == {"requests": 7, "m%3A": 1}
    applier.apply([record(part("web.1", 2, period=1), 6), record(part("web.1", 0), 7)])  # late, of the period before
    assert seen(tmp_path) == sink.counts() == {"requests": 9, "m%3A": 1}


def test_an_idle_instance_is_taken_off_and_comes_back_once(store: RowStore, tmp_path: Path) -> None:
    sink = MemorySink()
    applier = Applier(counters(), store, sink)
    applier.apply([record(part("web.1", 5), 0), record(part("web.2", 7), 1), record(part("web.2", 9, period=1), 2)])
    applier.finish(NOON + KEEP)
    assert applier.find_expired(NOON + 2 * KEEP) == []
    gone = applier.find_expired(NOON + 2 * KEEP + SECOND)
    assert {(one.partition, one.offset) for one in gone} == {(0, 0), (0, 1)}, "what the topic no longer needs"
    applier.apply([record(None, 3 + n, key=one.identity, removes=one.offset) for n, one in enumerate(gone)])
    assert seen(tmp_path) == sink.counts() == {"requests": 9}
    applier.apply([record(part("web.1", 1, period=2), 5)])
    assert seen(tmp_path) == sink.counts() == {"requests": 10}
    last = applier.find_expired(NOON + 9 * KEEP)
    applier.apply([record(None, 6 + n, key=one.identity, removes=one.offset) for n, one in enumerate(last)])
    assert seen(tmp_path) == sink.counts() == {}


def test_a_view_that_forgets_idle_keys_shows_the_latest_of_each(store: RowStore, tmp_path: Path) -> None:
    applier = Applier(counters(total=()), store, None)
    applier.apply([record(part("web.1", 5), 0), record(part("web.1", 6, period=1), 1), record(part("web.1", 4), 2)])
    assert seen(tmp_path) == {"web.1:requests": 6}


def test_sums_of_all_that_ever_was_need_no_period(store: RowStore, tmp_path: Path) -> None:
    applier = Applier(counters(keep=None), store, None)
    rows = [
        ViewRow(key={"instance": name, "metric": "m"}, values={"count": value}, build="a")
        for name, value in (("a", 0.1), ("b", 0.2), ("c", None), ("d", 1))
    ]
    applier.apply([record(row, offset) for offset, row in enumerate(rows)])
    assert seen(tmp_path) == {"m": 1.3}


def test_another_build_is_shown_when_it_is_complete(store: RowStore, tmp_path: Path) -> None:
    sink = MemorySink()
    applier = Applier(counters(), store, sink)
    applier.apply([record(part("web.1", 5), 0), record(part("old", 1, metric="old"), 1)])
    applier.apply([record(part("web.1", 6, build="b"), 2), record(part("web.2", 1, build="b"), 3)])
    assert seen(tmp_path) == sink.counts() == {"requests": 5, "old": 1}
    left = [*applier.switch_writes("b")]
    assert [one.offset for one in left] == [1]
    applier.switch("b")
    applier.apply([record(None, 4, key=one.identity, removes=one.offset) for one in left])
    assert seen(tmp_path) == sink.counts() == {"requests": 7}
    applier.apply([record(part("web.2", 2, build="b"), 5)])
    assert seen(tmp_path) == sink.counts() == {"requests": 8}
    amends = applier.apply([record(part("web.2", 99), 6)])  # what a process of the earlier build writes last
    assert seen(tmp_path) == {"requests": 8}
    assert [one.row and ViewRow.model_validate_json(one.row.to_record()) for one in amends] == [
        part("web.2", 2, build="b")
    ], "the part that is right, as it was on the topic"


def test_the_sum_is_that_of_a_recount_after_crashes_anywhere(store: RowStore, tmp_path: Path) -> None:
    chance, sink = random.Random(16), MemorySink()
    topics: dict[int, list[RowRecord]] = {0: [], 1: []}
    latest: dict[str, tuple[int, int]] = {}
    for number in range(300):
        name, period, partition = f"web.{chance.randrange(6)}", number // 100, 0
        partition = int(name[-1]) % 2
        row = part(name, chance.randrange(50), period=period)
        topics[partition].append(record(row, len(topics[partition]), partition=partition))
        latest[name] = (period, row.values["count"])
    applier = Applier(counters(), store, sink)
    while any(store.offsets().get(p, 0) < len(of) for p, of in topics.items()):
        partition = chance.randrange(2)
        begin = store.offsets().get(partition, 0)
        batch = topics[partition][begin : begin + chance.randrange(1, 40)]
        if batch and chance.random() < 0.3:  # dies between the sink and the file
            with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
                patch.setattr(store, "apply", lambda *_, **__: 1 / 0)
                applier.apply(batch)
            applier = Applier(counters(), store, sink)
            applier.check_sink()
        elif batch:
            applier.apply(batch)
    assert seen(tmp_path) == sink.counts() == {"requests": sum(value for _, value in latest.values())}
