"""Kills -9 of ingest and detector under load.

One kill at each moment is in tests/e2e: test_ingest, test_detect and, of the indexer and the notifier, test_alerts.
"""

from pathlib import Path

import pytest

from tests.faults.kills import plan, report, run
from tests.rig.broker import Broker
from tests.rig.observed import DETECT, INGEST


@pytest.mark.long
def test_kills_lose_nothing_double_nothing_and_tell_nobody_twice(broker: Broker, tmp_path: Path, rounds: int) -> None:
    outcome = run(tmp_path, broker, [*plan(DETECT, rounds or 3), *plan(INGEST, rounds or 2)])
    print(report(outcome))
    assert not outcome.verdict.faults
    assert outcome.verdict.findings > 20, "the load was too thin to prove anything"
    assert all(kill.hit for kill in outcome.kills)
