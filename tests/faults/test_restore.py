"""The drill of docs/run/backups.md: all jobs are killed under load, the state is lost, and a backup is restored."""

import shutil
import time
from pathlib import Path

import pytest

from tests.faults.findings import Follower, judge
from tests.faults.kills import BACK_SECONDS, settle
from tests.rig.backups_page import backup_with, restore_with
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import Load
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.declare.model.names import INDEXER, NOTIFIER

JOBS = (INGEST, DETECT, INDEXER, NOTIFIER)
# Longer than a window and the lateness: what comes between backup and loss is no longer open when it is computed again.
BETWEEN_SECONDS = 25.0


@pytest.mark.long
def test_a_lost_state_folder_is_restored_and_no_finding_is_lost_or_wrong(broker: Broker, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with Installation(tmp_path, broker, drain_offsets_per_trigger=1000) as installation:
        installation.make_topics()
        installation.start(*JOBS)
        installation.await_ready(*JOBS)
        kafka, raw = installation.settings.kafka.for_librdkafka(), installation.settings.names.raw(SOURCE)
        with Follower(installation) as follower, Load(kafka, raw) as load:
            await_that(lambda: len(follower.windows()) > 5, BACK_SECONDS, lambda: installation.log(DETECT)[-3000:])
            made = backup_with(installation.settings, installation.environment(), backup)
            assert (made.returncode, made.stderr) == (0, ""), made

            time.sleep(BETWEEN_SECONDS)
            for job in JOBS:
                installation.kill(job)
                installation.await_end(job)
            shutil.rmtree(installation.settings.state)
            time.sleep(BETWEEN_SECONDS)

            restored = restore_with(installation.settings, installation.environment(), backup)
            assert (restored.returncode, restored.stderr) == (0, ""), restored
            installation.start(*JOBS)
            installation.await_ready(*JOBS)
            load.stop()
            settle(installation, follower, load, DETECTOR)
            verdict = judge(installation, load.truth, follower.of())
    # A mail that left between backup and loss leaves again, with the same Message-ID; no user has two notifications.
    sent = {identity for identity in installation.message_ids() if installation.message_ids().count(identity) > 1}
    assert [fault for fault in verdict.faults if fault.removeprefix("told twice: ") not in sent] == []
    assert verdict.findings > 20, "the load was too thin to prove anything"
