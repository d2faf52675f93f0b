"""A recount that can tell a right view from a wrong one, and lines that the sources of the examples take."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tocsin.cli.demo.example_traffic import EXAMPLES, Rows, compare
from tocsin.declare.catalog import read_catalog
from tocsin.ingest.producer import key_reader

FOLDER = Path(__file__).resolve().parents[4] / "examples"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_lines_with_keys_and_a_view(name: str) -> None:
    catalog, traffic = read_catalog(FOLDER / name), EXAMPLES[name]()
    key_of = key_reader(catalog.source(traffic.source))
    assert all(key_of(traffic.next_line(datetime.now(UTC))) for _ in range(200))
    assert len(next(iter(traffic.rows()))[0]) == len(catalog.view(traffic.view).shown.key)


def test_a_row_that_is_wrong_missing_or_too_many_is_named() -> None:
    right: Rows = {(("a",), None): {"count": 2}, (("b",), None): {"count": 1}}
    assert compare(right, {place: values | {"changed_at": "now"} for place, values in right.items()}) == []
    assert compare(right, {place: {"count": f"{values['count']}.0"} for place, values in right.items()}) == []
    (wrong,) = compare(right, right | {(("a",), None): {"count": 3}})
    assert "('a',)" in wrong
    assert "3" in wrong
    (missing,) = compare(right, {(("a",), None): {"count": 2}})
    assert "no row instead of" in missing
    (more,) = compare(right, right | {(("c",), None): {"count": 0}})
    assert "instead of no row" in more
