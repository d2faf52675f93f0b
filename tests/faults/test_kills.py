"""Kills -9 of each job under load; `python -m tests.faults.kills` takes many."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.kills import Point, plan, report, run
from tests.rig.broker import Broker
from tests.rig.observed import DETECT, INGEST

FEW = [(DETECT, Point.BEFORE_COMMIT, "all"), (INGEST, Point.BEFORE_FLUSH, "jvm")]
MANY = [*plan(DETECT, 3), *plan(INGEST, 2)]


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"])
def test_kills_lose_nothing_double_nothing_and_tell_nobody_twice(
    broker: Broker, tmp_path: Path, kills: Sequence[tuple[str, Point, str]]
) -> None:
    outcome = run(tmp_path, broker, kills)
    assert not outcome.verdict.faults, report(outcome)
    assert outcome.verdict.findings > 20, "the load was too thin to prove anything"
    assert all(kill.hit for kill in outcome.kills), report(outcome)
