from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.findings import Follower, judge
from tests.rig.broker import Broker
from tests.rig.ingest_topics import Topics
from tests.rig.installation import Installation
from tests.rig.load import Load
from tests.rig.observed import DETECT, INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER

JOBS = (INGEST, DETECT, INDEXER, NOTIFIER)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A broker that is not started yet."""
    one = Broker(tmp_path / "kafka")
    try:
        yield one
    finally:
        one.kill()


def _reason(installation: Installation, job: str) -> str:
    report = installation.report(job)
    return "" if report is None else report.reason


def _says_that_kafka_is_away(installation: Installation, job: str) -> bool:
    report = installation.report(job)
    return report is not None and report.state is JobState.WAITING and report.reason != ""


@pytest.mark.long
def test_jobs_wait_for_kafka_at_start_and_in_the_middle_and_lose_nothing(own: Broker, tmp_path: Path) -> None:
    readers = (INGEST, DETECT, INDEXER)  # the notifier needs the alerts DB alone
    with Installation(tmp_path / "away", own) as one:
        one.start(*JOBS)
        for job in readers:
            await_that(partial(_says_that_kafka_is_away, one, job), 60)
        assert f"Kafka at {own.kafka.bootstrap_servers}" in _reason(one, INDEXER)
        await_that(lambda: all("cannot reach Kafka" in one.log(job) for job in (INGEST, DETECT)), 60)
        own.start()
        await_that(lambda: "does not exist yet" in _reason(one, INGEST), 60, lambda: one.log(INGEST)[-3000:])
        one.make_topics()
        one.await_ready(*JOBS)

        raw = one.settings.names.raw(SOURCE)
        with Follower(one) as follower, Load(one.settings.kafka.for_librdkafka(), raw) as load:
            await_that(lambda: len(follower.windows()) > 2, 120, lambda: one.log(DETECT)[-3000:])
            processes = {job: one.leader(job).pid for job in readers}
            own.kill()
            for job in readers:
                await_that(partial(_says_that_kafka_is_away, one, job), 90)
            own.start()
            one.await_ready(*JOBS)
            before = len(follower.windows())
            await_that(lambda: len(follower.windows()) > before + 2, 120, lambda: one.log(DETECT)[-3000:])
            load.stop()

            def faults() -> list[str]:
                return judge(one, load.truth, follower.findings).faults

            await_that(lambda: not faults(), 180, faults)
            Topics(one).assert_ticks_are_true()
            assert {job: one.leader(job).pid for job in readers} == processes, "jobs wait in place, they do not crash"
        assert [one.stop(job) for job in (INDEXER, NOTIFIER)] == [0, 0]
