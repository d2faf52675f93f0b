import time
from pathlib import Path

import pytest

from tests.faults.findings import Follower, window_of
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import Load
from tests.rig.observed import DETECT, INGEST, SOURCE
from tests.rig.small_disk import small_disk
from tests.rig.waiting import await_that
from tocsin.declare.model.job_report import JobState
from tocsin.platform.process_exit import ExitCode


def _ended_for_want_of_room(installation: Installation) -> bool:
    installation.await_end(DETECT)
    last = installation.reports(DETECT)[-1]
    return last.state is JobState.FAILED and "cannot be written" in last.reason


@pytest.mark.long
def test_a_full_disk_is_told_and_the_job_goes_on_once_there_is_room(broker: Broker, tmp_path: Path) -> None:
    with Installation(tmp_path, broker) as one, small_disk(one.settings.checkpoint(DETECT), 160) as disk:
        one.make_topics()
        one.start(INGEST, DETECT)
        one.await_ready(INGEST, DETECT)
        with (
            Follower(one) as follower,
            Load(one.settings.kafka.for_librdkafka(), one.settings.names.raw(SOURCE)) as load,
        ):
            await_that(lambda: len(follower.windows()) > 2, 120, lambda: one.log(DETECT)[-3000:])
            disk.fill()
            await_that(lambda: one.runner.exit_code(DETECT) is not None, 180)
            assert one.runner.exit_code(DETECT) == ExitCode.UNWRITABLE, one.log(DETECT)[-3000:]
            assert _ended_for_want_of_room(one), one.reports(DETECT)[-1]
            assert "No space left on device" in one.log(DETECT)

            disk.make_room()
            one.start(DETECT)
            one.await_ready(DETECT)
            time.sleep(3)
            load.stop()
            expected = load.truth.findings()
            await_that(
                lambda: expected.keys() <= follower.windows(), 90, lambda: sorted(expected.keys() - follower.windows())
            )
            assert {window_of(finding) for finding in follower.findings} == expected.keys()
            assert all(finding.score <= expected[window_of(finding)] for finding in follower.findings)
