"""Kills -9 of ingest and detector under load; `python -m tests.faults.kills` takes more.

One kill at each moment is in tests/e2e: test_ingest, test_detect and, of the indexer and the notifier, test_alerts.
"""

from pathlib import Path

import pytest

from tests.faults.kills import plan, report, run
from tests.rig.broker import Broker
from tests.rig.observed import DETECT, INGEST


@pytest.mark.long
def test_kills_lose_nothing_double_nothing_and_tell_nobody_twice(broker: Broker, tmp_path: Path) -> None:
    outcome = run(tmp_path, broker, [*plan(DETECT, 3), *plan(INGEST, 2)])
    assert not outcome.verdict.faults, report(outcome)
    assert outcome.verdict.findings > 20, "the load was too thin to prove anything"
    assert all(kill.hit for kill in outcome.kills), report(outcome)
