"""A few kills -9 of each job under load; `python -m tests.faults.kills` takes many."""

import os
from pathlib import Path

import pytest

from tests.faults.kills import plan, report, run
from tests.rig.broker import Broker
from tests.rig.observed import DETECT, INGEST

# Changes how many kills there are, and nothing else.
DETECT_KILLS, INGEST_KILLS = map(int, os.environ.get("TOCSIN_TEST_KILLS", "3,2").split(","))


@pytest.mark.timeout(900 + 240 * (DETECT_KILLS + INGEST_KILLS))
def test_kills_lose_nothing_double_nothing_and_tell_nobody_twice(broker: Broker, tmp_path: Path) -> None:
    outcome = run(tmp_path, broker, [*plan(DETECT, DETECT_KILLS), *plan(INGEST, INGEST_KILLS)])
    assert not outcome.verdict.faults, report(outcome)
    assert outcome.verdict.findings > 20, "the load was too thin to prove anything"
    assert all(kill.hit for kill in outcome.kills), report(outcome)
