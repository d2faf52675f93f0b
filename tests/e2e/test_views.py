"""Compute jobs as real processes: the rows on their topics equal a recount, also after a kill under load."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.rig.broker import Broker
from tests.rig.compute_job import ComputeJob, load
from tests.rig.detect_job import READY_SECONDS
from tests.rig.waiting import await_that
from tocsin.model.job_report import JobState
from tocsin.sparkjob.query.work import REAL_TIME
from tocsin.views.rebuild.rebuild_request import ask_rebuild
from tocsin.views.view_row import ViewRow, canonical_key

EPOCH, WINDOW = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=10)


@contextmanager
def compute_job(folder: Path, broker: Broker, example: str, view: str) -> Iterator[ComputeJob]:
    job = ComputeJob(folder, broker, example, view)
    try:
        yield job
    finally:
        job.close()


def kill_under_load(job: ComputeJob) -> str:
    """Start the job, kill it in the middle of its work, and start it again; returns its build."""
    process = job.begin()
    report = job.await_report(lambda r: r.mode == REAL_TIME and r.state is JobState.RUNNING)
    await_that(lambda: job.committed_batches() >= 2, READY_SECONDS)
    written = len(job.rows())
    assert written > 0
    job.kill(process)
    process = job.begin()
    again = job.await_report(lambda r: r.pid == process.pid and r.is_build_complete)
    assert (again.build, again.mode) == (report.build, REAL_TIME), "it goes on with its checkpoint"
    return again.build


def test_counts_of_windows_equal_a_recount_after_a_kill(tmp_path: Path, broker: Broker) -> None:
    chance, truth = random.Random(1), Counter[str]()
    with compute_job(tmp_path, broker, "words", "word_counts") as job:

        def write() -> None:
            word, moment = chance.choice(["ärger", "a", "日本"]), datetime.now(UTC)
            start = (moment - EPOCH - (moment - EPOCH) % WINDOW) // timedelta(microseconds=1)
            truth[canonical_key({"word": word}, start)] += 1
            job.events.write(chance.randrange(2), moment, word=word, writer="w")

        with load(write, each_second=100):
            build = kill_under_load(job)
        job.events.flush()
        await_that(lambda: counts(job.rows(), "count") == truth, READY_SECONDS, lambda: job.log.read_text()[-3000:])
        assert {row.build for row in job.rows().values()} == {build}
        assert job.await_report(lambda r: r.lag_records == 0).rows_dropped_late == 0


def test_totals_of_all_events_equal_a_recount_after_a_kill_and_in_a_rebuild(tmp_path: Path, broker: Broker) -> None:
    chance, truth = random.Random(2), Counter[str]()
    with compute_job(tmp_path, broker, "inventory", "inventory") as job:

        def write() -> None:
            store, item = chance.choice(["berlin", "köln"]), chance.choice(["lamp", 'a "big" chair'])
            kind, quantity = chance.choice(["sale", "restock"]), chance.randrange(1, 9)
            truth[canonical_key({"store": store, "item": item}, None)] += quantity if kind == "restock" else -quantity
            job.events.write(
                chance.randrange(2), datetime.now(UTC), store=store, item=item, kind=kind, quantity=quantity
            )

        with load(write, each_second=100):
            build = kill_under_load(job)
        job.events.flush()
        await_that(lambda: counts(job.rows(), "stock") == truth, READY_SECONDS, lambda: job.log.read_text()[-3000:])
        ask_rebuild(job.settings.state, job.view)
        rebuilt = job.await_report(lambda r: r.build != build and r.is_build_complete)
        rows = job.rows()
        assert counts(rows, "stock") == truth, "all events again, from the first on"
        assert {row.build for row in rows.values()} == {rebuilt.build}


def counts(rows: dict[str, ViewRow], value: str) -> dict[str, int]:
    return {key: row.values[value] for key, row in rows.items()}
