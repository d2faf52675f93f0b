"""Detectors that loop, leak and print without end, in jobs under a supervisor: each harms itself alone."""

import time
from collections.abc import Callable

import pytest

from tests.rig.detect_job import DetectJob, ticking
from tests.rig.harms import FLOODS, HARM_LINE, LEAKS, LOOPS, SupervisedJobs, detector
from tests.rig.waiting import await_that, repeated
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.supervise.job_states import Timing

HARMS = {"loops": LOOPS, "leaks": LEAKS, "floods": FLOODS}


@pytest.mark.long
def test_a_detector_that_loops_leaks_or_floods_harms_itself_alone(job: DetectJob) -> None:
    for name, harm in HARMS.items():
        declared = 'window=None, stage="shadow"'
        (job.settings.project / "detectors" / f"{name}.py").write_text(detector(harm=harm, declared=declared))
    spark = SparkSettings(trigger_seconds=5, ingest_trigger_seconds=5, memory_mb=1_800)
    settings = job.settings.model_copy(update={"spark": spark})
    topic, jobs = job.make_topics(), SupervisedJobs(settings, Timing(stalled_after=140))
    sizes, flooded = [0], settings.log("detector:floods")

    def measure() -> None:
        sizes.append(flooded.stat().st_size if flooded.exists() else 0)

    def works(name: str) -> Callable[[], bool]:
        def came() -> bool:
            report = jobs.report(f"detector:{name}")
            return report is not None and report.batch_id is not None

        return came

    with jobs.running(), ticking(topic), repeated(measure, 0.02):
        for name in (*HARMS, "failed_logins"):
            await_that(works(name), 150)
        for user in ("mallory", "trent"):
            topic.burst(user, 1)
        began = time.monotonic()
        topic.burst("trent", 120)
        leaks, loops = "detector:leaks", "detector:loops"
        await_that(lambda: jobs.past(leaks).failures != (), 60)
        assert "memory limit: takes " in jobs.past(leaks).reason
        assert " MB of 1800 MB" in jobs.past(leaks).reason
        await_that(lambda: jobs.past(loops).failures != (), 200)
        assert "made no progress for 14" in jobs.past(loops).reason
        assert f"a worker is at detectors/loops.py:{HARM_LINE}" in jobs.past(loops).reason
        assert time.monotonic() - began < 200
        job.await_truth(topic.truth, 60)
        assert jobs.past("detector:failed_logins").failures == ()
        assert jobs.past("detector:floods").failures == ()
    assert max(sizes) < 300_000_000, "a gigabyte was printed"
