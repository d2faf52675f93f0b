"""Where an ingest goes on, what it counts as removed, and where it says that its query has failed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rig.samples.checkpoints import batch
from tocsin.ingest.spark.ingestion import Ingest
from tocsin.project.settings import Settings

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    one = Ingest(Settings(project=REPOSITORY, state=tmp_path), "logins")
    batch(one._checkpoint(), 3, {one.reads: {"0": 5, "1": 8}})
    return one


def begin(one: Ingest, first: dict[int, int]) -> dict[int, int]:
    """What `start` does up to the search."""
    run: Any = SimpleNamespace(topic=SimpleNamespace(bounds=lambda: (first, {0: 99, 1: 99})))
    one._began_at, _ = one._position(run)
    return one._began_at


def test_a_failure_behind_removed_records_is_counted_where_the_next_start_begins(ingest: Ingest) -> None:
    assert begin(ingest, {0: 20, 1: 0}) == {0: 20, 1: 8}
    run: Any = None  # not asked for anything
    for _ in range(2):
        assert ingest.accept_failure(run, "a record ends the query")
    assert ingest._poison._state.failures == 2
    assert ingest._poison._state.position == begin(ingest, {0: 20, 1: 0})


def test_removed_records_count_once_however_often_it_starts(ingest: Ingest) -> None:
    begin(ingest, {0: 20, 1: 0})
    begin(ingest, {0: 20, 1: 0})
    assert ingest._counts["removed_unread"] == 15
    assert ingest._reason().startswith("15 records were removed before they were read, their events are lost; ")
    assert ingest._reason(90.0).endswith("their events are lost; drains a backlog up to 0:01:30 old")
    begin(ingest, {0: 30, 1: 10})
    assert ingest._counts["removed_unread"] == 27
