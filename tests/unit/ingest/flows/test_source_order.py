"""A flow whose plan reads its sources in another order goes on at the offsets of its checkpoint, despite kills."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.rig.samples.checkpoints import batch
from tocsin.ingest.flows.spark.flow_run import begin_at, fit_order
from tocsin.platform import state_file
from tocsin.platform.kafka.topic_set import Position, as_json, place_of
from tocsin.spark.query.checkpoint import read_committed

A, B, C = (f"events.{name}" for name in "abc")
A0, B0, C0 = (place_of(topic, 0) for topic in (A, B, C))


def commit(query: Path, offsets: Position) -> None:
    batch(query, 3, json.loads(as_json(offsets)))


def test_it_begins_where_the_checkpoint_before_was_until_it_has_one_of_its_own(tmp_path: Path) -> None:
    query = tmp_path / "query"
    assert fit_order(query, [A, B], [A0, B0]) == {}
    commit(query, {A0: 5, B0: 7})
    assert fit_order(query, [A, B], [A0, B0]) == {}
    for order in ([B, A, C], None, [B, A, C]):  # it is killed in its first batch, too
        assert fit_order(query, order, [A0, B0, C0]) == {A0: 5, B0: 7, C0: -2}
        assert not query.exists()
        (query / "offsets").mkdir(parents=True)
    shutil.rmtree(query)
    commit(query, {A0: 9, B0: 9, C0: 1})
    assert fit_order(query, [B, A, C], [A0, B0, C0]) == {}
    assert fit_order(query, [C], [C0]) == {C0: 1}, "one that it does not read any more is forgotten"


def test_a_flow_of_one_source_keeps_the_checkpoint_that_it_has(tmp_path: Path) -> None:
    query = tmp_path / "query"
    commit(query, {A0: 5})
    assert fit_order(query, [A], [A0]) == {}
    assert read_committed(query) == {A0: 5}
    assert fit_order(query, [A, B], [A0, B0]) == {A0: 5, B0: -2}


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_kill_while_it_changes_loses_no_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    query, written = tmp_path / "query", []
    commit(query, {A0: 5, B0: 7})
    assert fit_order(query, [A, B], [A0, B0]) == {}
    write = state_file.write

    def die(path: Path, kind: type, value: object) -> None:
        written.append(value)
        if len(written) == dies_at:
            raise KeyboardInterrupt
        write(path, kind, value)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(state_file, "write", die)
        fit_order(query, [B, A], [A0, B0])
    assert fit_order(query, [B, A], [A0, B0]) == {A0: 5, B0: 7}
    commit(query, {A0: 6, B0: 7})
    assert fit_order(query, [B, A], [A0, B0]) == {}


def test_a_flow_with_a_topic_that_was_recreated_goes_on_where_it_was_in_the_others(tmp_path: Path) -> None:
    query = tmp_path / "query"
    batch(query, 0, {A: {"0": 5}, B: {"0": 7}})
    assert fit_order(query, [A, B], [A0, B0]) == {}
    begin_at(query, {B0: 7})
    assert fit_order(query, None, [A0, B0]) == {A0: -2, B0: 7}
    assert not query.exists()
    assert fit_order(query, [A, B], [A0, B0]) == {A0: -2, B0: 7}
    begin_at(query, {})
    assert fit_order(query, None, [A0, B0]) == {}, "all of it from the first event"
