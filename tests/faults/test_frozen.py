"""A JVM that hangs, while the Python beside it lives."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.rig.broker import Broker
from tests.rig.installation import STOP_SECONDS, Installation, jvms_of
from tests.rig.observed import INGEST
from tests.rig.waiting import await_that
from tocsin.kafka.job_reports import read_reports
from tocsin.runtime.heartbeat import read_beat
from tocsin.runtime.reporter import EVERY_SECONDS


def test_a_job_whose_jvm_hangs_gives_no_heartbeat_until_it_goes_on_and_can_be_stopped(
    broker: Broker, tmp_path: Path
) -> None:
    with Installation(tmp_path, broker, archive=False) as one:  # its making is another JVM
        one.make_topics()
        one.start(INGEST)
        one.await_ready(INGEST)

        def silent_seconds() -> float:
            beat = read_beat(one.settings.state, INGEST)
            assert beat is not None
            return beat.age_seconds

        leader = one.leader(INGEST)
        (jvm,) = jvms_of(leader)
        jvm.suspend()
        await_that(lambda: silent_seconds() > 4 * EVERY_SECONDS, 60)
        reported = read_reports(one.settings)[INGEST]
        assert (datetime.now(UTC) - reported.at).total_seconds() > 4 * EVERY_SECONDS, "though ticks ask for the time"
        jvm.resume()
        await_that(lambda: silent_seconds() < EVERY_SECONDS, 60)
        assert leader.is_running()

        jvm.suspend()
        assert one.stop(INGEST) == 0
        await_that(lambda: not jvm.is_running(), STOP_SECONDS)
