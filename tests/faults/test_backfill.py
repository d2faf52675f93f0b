"""Backfills that are killed: `tests.faults.backfill_kills` takes more rounds and tells of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.backfill_kills import Rounds


@pytest.mark.long
def test_a_backfill_that_is_killed_anywhere_half_publishes_no_day(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    done = [rounds.killed() for _ in range(4)]
    assert [fault for one in done for fault in one.faults] == []
    assert any(one.killed for one in done)
    rounds.whole()
    rounds.again()
