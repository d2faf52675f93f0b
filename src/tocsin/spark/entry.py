"""Run the query of a job of Spark."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.kafka.retry import Retry
from tocsin.platform.storage.job_folders import claim
from tocsin.spark.engine import jvm
from tocsin.spark.query.query_loop import QueryLoop
from tocsin.spark.query.stream_job import StreamJob
from tocsin.spark.session import clean_scratch, scratch_folder


def run_query(job: Job, make: Callable[[Settings, str], StreamJob]) -> None:
    """Run the query of `job` until it is asked to stop, then leave nothing running. This process leads, or waits to.

    Raises:
        ConfigError: something must be fixed first.
        Unwritable: the checkpoint cannot be written; a restart helps once there is room.
        TransientError: Kafka or the object store fails again and again.
        RuntimeError: the query failed for another reason; a restart may help.
    """
    offer_to_the_kernel()
    settings, reporter = job.settings, job.reporter
    job.kill = jvm.kill
    # PySpark's functions ask whether they are called in a notebook: where IPython is installed, 23 MB and 90 ms.
    sys.modules.setdefault("IPython", None)  # type: ignore[arg-type]
    reporter.expect_batches(jvm.await_answer)

    def prepare() -> StreamJob:
        claim(settings)
        return make(settings, job.name)

    stream = Retry(reporter, job.stop).call(prepare)
    if stream is None:
        return
    clean_scratch(settings, stream.spec.job)
    reporter.update(version=stream.spec.version)  # now: the session takes seconds, and Kafka may be away
    loop = QueryLoop(settings, stream, reporter, job.stop)
    try:
        loop.run_until_stopped()
    finally:
        reporter.update(state=JobState.STOPPING, reason="")
        loop.close()
        shutil.rmtree(scratch_folder(settings, stream.spec.job), ignore_errors=True)


def offer_to_the_kernel() -> None:
    """Let Linux end this process, its JVM or its Python workers first when memory runs out, not the broker or a DB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
