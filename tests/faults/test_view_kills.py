"""Parts of views that are killed: `tests.faults.view_kills` takes more rounds and tells of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.view_kills import PARTS, rounds


@pytest.mark.long
def test_sinks_hold_what_a_recount_gives_whatever_is_killed(tmp_path: Path) -> None:
    with rounds(tmp_path) as one:
        assert [kill.fault for kill in map(one.killed, PARTS) if kill.fault] == []
