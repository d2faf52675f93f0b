"""Executors on YARN: a real ResourceManager and NodeManager, which `make setup-yarn` fetches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.past import Past, day_before
from tests.rig.broker import Broker
from tests.rig.detect_job import LiveJob, detect_job
from tests.rig.lost_executor import losing_an_executor
from tests.rig.past_days import STEPPED, WINDOWED, PastDays
from tests.rig.stack import listening
from tests.rig.waiting import await_that
from tests.rig.yarn_cluster import YarnCluster, yarn_cluster
from tocsin.model.job_report import JobState
from tocsin.project.blocks.spark_settings import SparkSettings

DRIVER = "127.0.0.2"


def on_yarn(cores: int) -> dict[str, Any]:
    return {
        "master": "yarn",
        "driver_host": DRIVER,
        "resources": {"executors": 2, "cores": cores, "memory": "512 MB"},
    }


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as one, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HADOOP_CONF_DIR", str(one.configuration))
        yield one


@pytest.mark.long
def test_a_detector_waits_for_yarn_loses_an_executor_and_finds_all(
    tmp_path: Path, broker: Broker, yarn: YarnCluster
) -> None:
    yarn.kill("resourcemanager.ResourceManager")
    with detect_job(tmp_path, broker, **on_yarn(cores=3)) as job:
        live = LiveJob(job)
        live.start()
        away = "no executors can be asked for: YARN: java.net.ConnectException: Connection refused"
        job.await_report(lambda r: (r.pid, r.state, r.reason) == (live.process.pid, JobState.WAITING, away))
        yarn.start_daemon("resourcemanager.ResourceManager")
        with losing_an_executor(live, yarn.executors) as executors:
            assert len(executors) == 2
            # Of executors one port cannot be bound to an address: see ARCHITECTURE.md, security.
            others = set(yarn.started()) - set(executors)
            places = {at.removeprefix("::ffff:") for one in others for at in listening(one)}
            assert places <= {"127.0.0.1", DRIVER}
        live.stop()
    await_that(lambda: yarn.started() == [], 60, lambda: str(yarn.started()))


@pytest.mark.long
def test_a_day_is_sealed_and_backfilled_on_yarn(tmp_path: Path, yarn: YarnCluster) -> None:
    days = PastDays(tmp_path, Past(day_before(datetime.now(UTC), 2), 1, 60_000, users=5_000, bursts=20))
    spark = SparkSettings.model_validate(on_yarn(cores=1))
    days.settings = days.settings.model_copy(update={"spark": spark})
    run = days.submit("local[2]", "seal", "logins")
    await_that(lambda: yarn.executors() or run.poll() is not None, 120, days.said)
    assert run.poll() is None, days.said()
    days.await_end(run)
    days.await_end(days.submit("local[2]", "backfill", WINDOWED, STEPPED))
    days.check()
