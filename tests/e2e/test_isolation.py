"""Detectors that loop, leak and print without end, in jobs under a supervisor: each harms itself alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.rig.detect_job import DetectJob, ticking
from tests.rig.waiting import await_that
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.platform.heartbeat import read_beat
from tocsin.setup.java import find_java
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Past, Start, Timing, memory_of, read_history
from tocsin.supervise.runners.job_command import job_launch
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.log_files import rotate
from tocsin.supervise.runners.process_labels import Labels, instance_of
from tocsin.supervise.runners.runner import Launch
from tocsin.supervise.supervisor import JobGroup, Supervisor

DETECTOR = '''"""Harms itself."""
import sys
from pyspark.sql import functions as F

from tocsin import Levels, detector


def harm(user):
    {harm}
    return 0


@detector(source="logins", entity="user_id", window=None, levels=Levels(email=50), owner="a@example.com",
          runbook="r", stage="shadow")
def detect(events):
    return events.withColumn("score", F.udf(harm, "int")("user_id"))
'''
HARMS = {
    "loops": "while user == 'mallory': pass",
    # In another module, as a library's cache is: what the detector's own keeps, Spark drops at the end of each task.
    "leaks": "vars(sys).setdefault('kept', []).extend(b'x' * 20_000_000 for _ in range(100 * (user == 'mallory')))",
    "floods": "[sys.stderr.write('x' * 99_999 + chr(10)) for _ in range(10_000 if user == 'mallory' else 0)]",
}


class Watched:
    """The supervised jobs of one project."""

    def __init__(self, job: DetectJob) -> None:
        spark = SparkSettings(trigger_seconds=5, ingest_trigger_seconds=5, memory_mb=1_800)
        self.settings = job.settings.model_copy(update={"spark": spark})
        self.longest_log = 0
        self._runner = LocalRunner(instance_of(self.settings), self.settings.log)
        group = JobGroup(name="jobs", state=self.settings.state, launch=self._launch, timing=Timing(stalled_after=140))
        self._supervisor = Supervisor(group, self._runner)
        self._stop = threading.Event()

    def _launch(self, start: Start) -> Launch:
        labels = Labels(instance_of(self.settings), start.job, start.spec)
        return job_launch(self.settings, labels, find_java().home, beside=start.beside)

    def past(self, name: str) -> Past:
        return read_history(memory_of(self.settings.state, "jobs")).jobs.get(f"detector:{name}", Past())

    def supervise(self) -> None:
        every = desired_jobs(read_catalog(self.settings.project), self.settings)
        desired = {job: one for job, one in every.items() if job.partition(":")[0] == "detector"}
        while not self._stop.wait(1.0):
            self._supervisor.tick(desired)
            for job in desired:
                rotate(self.settings.log(job))

    def measure(self) -> None:
        log = self.settings.log("detector:floods")
        while not self._stop.wait(0.02):
            self.longest_log = max(self.longest_log, log.stat().st_size if log.exists() else 0)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=one, daemon=True) for one in (self.supervise, self.measure)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            for process in self._runner.list():
                self._runner.stop(process, force=True)
            await_that(lambda: not self._runner.list(), 20)


@pytest.mark.long
def test_a_detector_that_loops_leaks_or_floods_harms_itself_alone(job: DetectJob) -> None:
    folder = job.settings.project / "detectors"
    for name, harm in HARMS.items():
        (folder / f"{name}.py").write_text(DETECTOR.format(harm=harm))
    topic, watched = job.make_topics(), Watched(job)

    def works(name: str) -> Callable[[], bool]:
        def came() -> bool:
            beat = read_beat(watched.settings.state, f"detector:{name}")
            return beat is not None and beat.report.batch_id is not None

        return came

    with watched.running(), ticking(topic):
        for name in (*HARMS, "failed_logins"):
            await_that(works(name), 150)
        for user in ("mallory", "trent"):
            topic.burst(user, 1)
        began = time.monotonic()
        topic.burst("trent", 120)
        await_that(lambda: watched.past("leaks").failures != (), 60)
        assert "memory limit: takes " in watched.past("leaks").reason
        assert " MB of 1800 MB" in watched.past("leaks").reason
        await_that(lambda: watched.past("loops").failures != (), 200)
        line = DETECTOR.splitlines().index("    {harm}") + 1
        assert "made no progress for 14" in watched.past("loops").reason
        assert f"a worker is at detectors/loops.py:{line}" in watched.past("loops").reason
        assert time.monotonic() - began < 200
        job.await_truth(topic.truth, 60)
        assert watched.past("failed_logins").failures == ()
        assert watched.past("floods").failures == ()
    assert watched.longest_log < 300_000_000, "a gigabyte was printed"
