"""A few kills -9 of Airflow and the jobs that it keeps; `python -m tests.faults.platform_kills` takes many."""

import os
import time
from pathlib import Path

import pytest

from tests.faults.platform_kills import ROUND_SECONDS, report, run

ROUNDS = int(os.environ.get("TOCSIN_TEST_ROUNDS", "3"))
# Another one each time, so that in time everything is killed; a failure names it.
SEED = int(os.environ.get("TOCSIN_TEST_SEED", str(int(time.time()))))


@pytest.mark.timeout(300 + ROUNDS * ROUND_SECONDS)
def test_whatever_is_killed_each_job_runs_once_and_nothing_is_lost(tmp_path: Path) -> None:
    print(f"TOCSIN_TEST_SEED={SEED}")
    outcome = run(tmp_path, ROUNDS, 0, SEED)
    assert not outcome.faults, report(outcome)
    assert outcome.verdict.findings > 10, "the load was too thin to prove anything"
    assert outcome.looks > 20 * ROUNDS
