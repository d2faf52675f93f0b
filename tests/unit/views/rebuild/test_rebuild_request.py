"""Requests to compute a view anew."""

from __future__ import annotations

from pathlib import Path

from tocsin.views.rebuild.rebuild_request import ask_rebuild, read_rebuild


def test_a_view_that_nobody_asked_to_rebuild_has_no_request(tmp_path: Path) -> None:
    ask_rebuild(tmp_path, "word_counts")

    assert read_rebuild(tmp_path, "stock") is None


def test_each_request_is_another_and_the_latest_counts(tmp_path: Path) -> None:
    first = ask_rebuild(tmp_path, "word_counts")
    second = ask_rebuild(tmp_path, "word_counts")

    assert first.id != second.id
    assert read_rebuild(tmp_path, "word_counts") == second
