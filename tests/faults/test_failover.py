"""The alerts DB fails over: its primary dies, and a standby takes over while findings come in."""

from pathlib import Path

import pytest

from tests.faults.scene import under_load
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.postgres_pair import postgres_pair
from tests.rig.waiting import await_that
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_a_standby_takes_over_and_everybody_is_told_once(broker: Broker, tmp_path: Path) -> None:
    with postgres_pair(tmp_path / "postgres") as pair, Installation(tmp_path / "failover", broker) as one:
        (file := tmp_path / "alerts-db").write_text(pair.address)
        alerts = one.settings.alerts.model_copy(update={"database_file": file})
        one.settings = one.settings.model_copy(update={"alerts": alerts})
        with under_load(one) as scene:
            processes, mails = scene.processes(), len(one.sink.mails)
            await_that(lambda: len(one.sink.mails) > mails, 60)
            pair.lose_primary()
            await_that(lambda: all(one.state(job) is JobState.WAITING for job in (INDEXER, NOTIFIER)), 60)
            scene.await_findings()  # detection does not need it
            mails = len(one.sink.mails)
            pair.promote_standby()
            await_that(lambda: len(one.sink.mails) > mails, 60, lambda: one.log(INDEXER)[-2000:])
            assert scene.processes() == processes, "jobs wait in place, they do not crash"
            scene.assert_exact()
