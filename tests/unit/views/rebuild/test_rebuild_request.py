"""Requests to compute a view anew."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tocsin.views.rebuild.rebuild_request import (
    HistoryPart,
    Rebuild,
    build_name,
    next_build,
    read_rebuild,
    record_begin,
    request_rebuild,
)


def test_a_view_that_nobody_asked_to_rebuild_has_no_request(tmp_path: Path) -> None:
    request_rebuild(tmp_path, "word_counts")

    assert read_rebuild(tmp_path, "stock") is None


def test_each_request_is_another_and_the_latest_counts(tmp_path: Path) -> None:
    first = request_rebuild(tmp_path, "word_counts")
    second = request_rebuild(tmp_path, "word_counts")

    assert first.id != second.id
    assert read_rebuild(tmp_path, "word_counts") == second


def test_a_part_from_history_belongs_to_one_build_and_never_comes_back(tmp_path: Path) -> None:
    state, base = tmp_path / "state", tmp_path / "checkpoint"
    name = build_name("v1", "plan", "r", from_history=True)
    part = HistoryPart(name, datetime(2026, 11, 24, tzinfo=UTC), {})
    request_rebuild(state, "stock", Rebuild(id="r", history=part))
    request = read_rebuild(state, "stock")

    assert request is not None and request.history == part
    assert next_build(base, "v1", "plan", request) == name
    assert next_build(base, "v2", "plan", request) == build_name("v2", "plan", "r"), "the view has changed meanwhile"
    (base / name).mkdir(parents=True)
    record_begin(base, name)
    assert next_build(base, "v1", "plan", request) == name, "after a restart"
    (base / name).rmdir()
    assert next_build(base, "v1", "plan", request) == build_name("v1", "plan", "r"), "another build was there since"
