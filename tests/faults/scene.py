"""All jobs of one detector under load, in the middle of which something fails."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.faults.findings import Follower, Verdict, judge
from tests.faults.kills import BACK_SECONDS, settle
from tests.rig.installation import Installation
from tests.rig.load import Load
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.declare.model.names import INDEXER, NOTIFIER

_ENOUGH = 20  # windows with findings
JOBS = (INGEST, DETECT, INDEXER, NOTIFIER)


@dataclass(frozen=True)
class Scene:
    """Jobs at work: `installation` runs them, `load` feeds them, `follower` reads what they find."""

    installation: Installation
    load: Load
    follower: Follower

    def await_findings(self) -> None:
        """Wait for a finding on an event that is later than this call."""
        now = time.time()
        await_that(
            lambda: self.follower.back_at(now) is not None,
            BACK_SECONDS,
            lambda: "\n".join(self.installation.log(job)[-2000:] for job in JOBS),
        )

    def processes(self) -> dict[str, int]:
        """The process of each job: the same ones after a fault that jobs wait for."""
        return {job: self.installation.leader(job).pid for job in JOBS}

    def verdict(self) -> Verdict:
        """Let the load be enough to prove something, end it, let all be told, and compare."""
        await_that(lambda: len(self.load.truth.findings()) > _ENOUGH, BACK_SECONDS)
        self.load.stop()
        settle(self.installation, self.follower, self.load, DETECTOR)
        return judge(self.installation, self.load.truth, self.follower.of())

    def assert_exact(self) -> None:
        """Every finding is there and right, and each person was told once."""
        verdict = self.verdict()
        assert not verdict.faults, "\n".join(verdict.faults[:50])


@contextmanager
def under_load(installation: Installation) -> Iterator[Scene]:
    """Start all jobs and the load, and wait for the first finding."""
    installation.make_topics()
    installation.start(*JOBS)
    installation.await_ready(*JOBS)
    kafka, raw = installation.settings.kafka.for_librdkafka(), installation.settings.names.raw(SOURCE)
    with Follower(installation) as follower, Load(kafka, raw) as load:
        scene = Scene(installation, load, follower)
        scene.await_findings()
        yield scene
