"""Compute jobs as real processes: the rows on their topics equal a recount, also after a kill under load."""

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.rig.broker import Broker
from tests.rig.compute_job import ComputeJob
from tests.rig.detect_job import READY_SECONDS
from tests.rig.landing import land
from tests.rig.waiting import await_that, patient, repeated
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.history.places import begin
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topic_set import TopicSet
from tocsin.spark.query.work import REAL_TIME
from tocsin.views.rebuild.rebuild_request import read_rebuild, request_rebuild
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import store_path
from tocsin.views.stored_row import ViewRow, canonical_key

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
    await_that(lambda: job.committed_batches() >= 1, READY_SECONDS)
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

        with repeated(write, 1 / 100):
            build = kill_under_load(job)
        job.events.flush()
        await_that(lambda: counts(job.rows(), "count") == truth, READY_SECONDS, lambda: job.log.read_text()[-3000:])
        assert {row.build for row in job.rows().values()} == {build}
        assert job.await_report(lambda r: r.lag_records == 0).rows_dropped_late == 0


@pytest.mark.long
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

        with repeated(write, 1 / 100):
            build = kill_under_load(job)
        job.events.flush()
        await_that(lambda: counts(job.rows(), "stock") == truth, READY_SECONDS, lambda: job.log.read_text()[-3000:])
        request_rebuild(job.settings.state, job.view)
        rebuilt = job.await_report(lambda r: r.build != build and r.is_build_complete)
        rows = job.rows()
        assert counts(rows, "stock") == truth, "all events again, from the first on"
        assert {row.build for row in rows.values()} == {rebuilt.build}


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "view", "value"), [("words", "word_counts", "count"), ("inventory", "inventory", "stock")]
)
def test_events_that_kafka_no_longer_has_come_back_from_history_after_kills(
    tmp_path: Path, broker: Broker, example: str, view: str, value: str
) -> None:
    chance, truth = random.Random(3), Counter[str]()
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=2), today - timedelta(days=1)]
    with compute_job(tmp_path, broker, example, view) as job:

        def write(moment: datetime) -> None:
            name = chance.choice(["ärger", "a", "日本"])
            if example == "words":
                start = (moment - EPOCH - (moment - EPOCH) % WINDOW) // timedelta(microseconds=1)
                truth[canonical_key({"word": name}, start)] += 1
                columns: dict[str, Any] = {"word": name, "writer": "w"}
            else:
                truth[canonical_key({"store": "köln", "item": name}, None)] += 1
                columns = {"store": "köln", "item": name, "kind": "restock", "quantity": 1}
            job.events.write(chance.randrange(2), moment, **columns)

        for day in days:
            for _ in range(3000):
                write(begin(day) + timedelta(seconds=chance.choice([0, 86_399.5, 3600 * chance.random()])))
        job.events.flush()
        assert land(job.settings, job.source).events >= 6000
        for partition in (0, 1):  # some of what is sealed is on the stream still, too
            job.remove_records(partition, keep=0 if example == "words" else 500)
        applier = subprocess.Popen([sys.executable, "-m", "tocsin.job", "view", job.view], env=job.environment)
        try:
            with repeated(lambda: write(datetime.now(UTC)), 1 / 50):
                seal = job.run("seal.py", job.source.name, *[f"--day={day}" for day in days])
                assert seal.wait(patient(120)) == 0, job.log.read_text()[-3000:]
                build = rebuild_under_kills(job, value)
            job.events.flush()
            await_that(lambda: shown(job, value) == {build: truth}, READY_SECONDS, lambda: job.log.read_text()[-3000:])
            if example == "inventory":
                give_way(job, value, build)
        finally:
            applier.terminate()
            applier.wait()


def rebuild_under_kills(job: ComputeJob, value: str) -> str:
    """Rebuild the view, with the batch and the job killed in between; returns the build."""
    before = job.begin()
    first = job.await_report(lambda r: r.is_build_complete)
    await_that(lambda: shown(job, value).keys() == {first.build}, READY_SECONDS)
    written = written_by_rebuild(job) + 300  # more than the stream writes meanwhile
    rebuild = job.run("rebuild.py", job.view)
    while written_by_rebuild(job) < written and rebuild.poll() is None:
        time.sleep(0.01)
    job.kill(rebuild)
    if read_rebuild(job.settings.state, job.view) is None:
        assert shown(job, value).keys() == {first.build}, "readers see the old rows"
    assert job.run("rebuild.py", job.view).wait(patient(120)) == 0, job.log.read_text()[-3000:]
    asked = read_rebuild(job.settings.state, job.view)
    assert asked is not None and asked.history is not None
    build = asked.history.build
    job.await_report(lambda r: r.build == build)
    job.kill(before)
    job.begin()
    again = job.await_report(lambda r: r.pid != before.pid and r.is_build_complete)
    assert again.build == build, "it goes on with its checkpoint"
    return build


def give_way(job: ComputeJob, value: str, build: str) -> None:
    """Check that the events of history are gone when they are read, and with the next build their topic, too."""
    past = job.settings.names.rebuild(job.view, build)
    with TopicReader(job.settings, "test", past) as topic:
        await_that(lambda: topic.bounds()[0] == topic.bounds()[1], READY_SECONDS)
        job.await_report(lambda r: r.mode == REAL_TIME and r.state is JobState.RUNNING)
        request_rebuild(job.settings.state, job.view)
        await_that(lambda: not topic.partitions(), READY_SECONDS)
    last = job.await_report(lambda r: r.build != build and r.is_build_complete)
    await_that(lambda: shown(job, value).keys() == {last.build}, READY_SECONDS)
    assert {row.build for row in job.rows().values()} == {last.build}


def written_by_rebuild(job: ComputeJob) -> int:
    """Count the records on the topics that a rebuild writes to; the job writes to that of the view, too."""
    admin = AdminClient(job.settings.kafka.for_librdkafka())
    names, is_windowed = job.settings.names, job.view == "word_counts"
    past = [name for name in admin.list_topics(timeout=10).topics if name.startswith(names.rebuild(job.view, ""))]
    read = TopicSet(job.settings, "test", [names.view(job.view)] if is_windowed else past)
    with read as topics, contextlib.suppress(TransientError):  # a topic that has just come has no leader yet
        return sum(topics.bounds()[1].values())
    return 0


def shown(job: ComputeJob, value: str) -> dict[str, Counter[str]]:
    """What readers of the view see, by build: one value by the identity of the row."""
    found: dict[str, Counter[str]] = {}
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(ViewReader(store_path(job.settings, job.view))) as one,
    ):
        page = one.page(limit=10_000)
        assert page.cursor is None
        for row in page.rows:
            found.setdefault(row.build, Counter())[row.identity] = row.values[value]
    return found


def counts(rows: dict[str, ViewRow], value: str) -> dict[str, int]:
    return {key: row.values[value] for key, row in rows.items()}
