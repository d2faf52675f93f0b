"""Kills -9 of every part of a Spark cluster under load: an executor, a worker, the master, the driver."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.findings import Follower, Verdict, judge
from tests.faults.kills import BACK_SECONDS, settle
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import Load
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE
from tests.rig.spark_cluster import SparkCluster
from tests.rig.waiting import await_that
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER

RESOURCES = {"executors": 2, "cores": 3, "memory": "512 MB"}


@dataclass(frozen=True)
class Loss:
    """One part that was killed.

    Attributes:
        what: the part.
        back_seconds: from the kill to the first finding on an event later than it.
        same_process: whether the job went on in the same driver.
    """

    what: str
    back_seconds: float
    same_process: bool

    def __str__(self) -> str:
        return f"{self.what}: back after {self.back_seconds:.1f} s, {'same' if self.same_process else 'another'} driver"


class ClusterKiller:
    """Kills the parts of a cluster that one installation uses."""

    def __init__(self, installation: Installation, follower: Follower, cluster: SparkCluster) -> None:
        self._installation, self._follower, self._cluster = installation, follower, cluster

    def kill_all(self) -> list[Loss]:
        """Kill each part once; what a kill leaves missing is started again before the next."""
        return [
            self._lose("executor", self._kill_executor),
            self._lose(
                "worker", lambda: self._cluster.kill("worker-1"), lambda: self._cluster.start_worker("worker-1")
            ),
            self._lose("master", lambda: self._cluster.kill("master"), self._cluster.start_master),
            self._lose("driver", self._kill_driver),
        ]

    def _lose(self, what: str, kill: Callable[[], object], mend: Callable[[], object] = lambda: None) -> Loss:
        self._await_calm()
        before = self._installation.leader(DETECT).pid
        kill()
        killed_at = time.time()
        await_that(
            lambda: self._follower.back_at(killed_at) is not None,
            BACK_SECONDS,
            lambda: f"not back after the loss of {what}; the log ends:\n{self._installation.log(DETECT)[-4000:]}",
        )
        mend()
        seconds = (self._follower.back_at(killed_at) or 0.0) - killed_at
        loss = Loss(what, seconds, self._installation.leader(DETECT).pid == before)
        print(loss, flush=True)
        return loss

    def _await_calm(self) -> None:
        await_that(lambda: self._installation.state(DETECT) is JobState.RUNNING, BACK_SECONDS)

    def _kill_executor(self) -> None:
        self._cluster.executors()[0].kill()

    def _kill_driver(self) -> None:
        self._installation.kill(DETECT)
        self._installation.await_end(DETECT)
        self._installation.start(DETECT)


def run(folder: Path, broker: Broker, cluster: SparkCluster, rounds: int) -> tuple[list[Loss], Verdict]:
    """A load with kills in it, and the verdict once all has been processed and everybody told."""
    losses = []
    with Installation(folder, broker, master=cluster.master, resources=RESOURCES) as installation:
        installation.make_topics()
        installation.start(INGEST, DETECT, INDEXER, NOTIFIER)
        installation.await_ready(INGEST, DETECT, INDEXER, NOTIFIER)
        kafka, raw = installation.settings.kafka.for_librdkafka(), installation.settings.names.raw(SOURCE)
        with Follower(installation) as follower, Load(kafka, raw) as load:
            await_that(lambda: bool(follower.findings), BACK_SECONDS, lambda: installation.log(DETECT)[-3000:])
            killer = ClusterKiller(installation, follower, cluster)
            for _ in range(rounds):
                losses += killer.kill_all()
            load.stop()
            settle(installation, follower, load, DETECTOR)
            return losses, judge(installation, load.truth, follower.of())
