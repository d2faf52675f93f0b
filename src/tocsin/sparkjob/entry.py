"""Run the query of a job of Spark."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tocsin.job import Job
from tocsin.model.job_report import JobState
from tocsin.project.settings import Settings
from tocsin.sparkjob.engine import jvm
from tocsin.sparkjob.query.query_loop import QueryLoop
from tocsin.sparkjob.query.work import Work
from tocsin.sparkjob.session import clean_scratch, scratch_folder
from tocsin.storage.claim import claim


def run_query(job: Job, work_of: Callable[[Settings, str], Work]) -> None:
    """Run the work of `job` until it is asked to stop, then leave nothing running. This process leads, or waits to.

    Raises:
        ConfigError: something must be fixed first.
        Unwritable: the checkpoint cannot be written; a restart helps once there is room.
        TransientError: Kafka fails again and again.
        RuntimeError: the query failed for another reason; a restart may help.
    """
    _offer_to_the_kernel()
    settings, reporter = job.settings, job.reporter
    job.kill = jvm.kill
    reporter.expect_batches(jvm.await_answer)
    claim(settings)
    work = work_of(settings, job.name)
    clean_scratch(settings, work.job)
    reporter.update(version=work.version)  # now: the session takes seconds, and Kafka may be away
    loop = QueryLoop(settings, work, reporter, job.stop)
    try:
        loop.run_until_stopped()
    finally:
        reporter.update(state=JobState.STOPPING, reason="")
        loop.close()
        shutil.rmtree(scratch_folder(settings, work.job), ignore_errors=True)


def _offer_to_the_kernel() -> None:
    """Let Linux end this process, its JVM or its Python workers first when memory runs out, not the broker or a DB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
