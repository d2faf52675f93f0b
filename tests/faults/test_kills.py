"""Kills -9 of ingest and detector under load.

One kill at each moment is in tests/e2e: test_ingest, test_detect and, of the indexer and the notifier, test_alerts.
"""

from pathlib import Path

import pytest

from tests.faults.kills import ENGINE, plan, report, run
from tests.rig.broker import Broker
from tests.rig.observed import DETECT, INGEST


@pytest.mark.long
def test_kills_lose_nothing_double_nothing_and_tell_nobody_twice(broker: Broker, tmp_path: Path, rounds: int) -> None:
    outcome = run(tmp_path, broker, [*plan(DETECT, rounds or 3), *plan(INGEST, rounds or 2)])
    print(report(outcome))
    assert not outcome.verdict.faults
    assert outcome.verdict.findings > 20, "the load was too thin to prove anything"
    assert all(kill.hit for kill in outcome.kills)


@pytest.mark.long
def test_kills_of_a_job_and_of_its_engine_lose_nothing_and_double_nothing(
    broker: Broker, tmp_path: Path, rounds: int
) -> None:
    """The job goes on in the same process when its engine has died, and attaches to the next."""
    own, engines = plan(DETECT, rounds or 2, ["python"]), plan(ENGINE, rounds or 2)
    outcome = run(tmp_path, broker, [kill for pair in zip(own, engines, strict=True) for kill in pair])
    print(report(outcome))
    assert not outcome.verdict.faults
    assert outcome.verdict.findings > 20, "the load was too thin to prove anything"
