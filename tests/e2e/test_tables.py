"""Detectors that join, as real processes: a table that changes, and a second stream.

Findings equal a recount across changes and kills.
"""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.rig.broker import Broker
from tests.rig.compute_job import Events
from tests.rig.detect_job import READY_SECONDS, DetectJob, text
from tests.rig.waiting import await_that, repeated
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import table_job
from tocsin.platform.kafka.reader import TopicReader, appended_at
from tocsin.platform.kafka.topic_set import Position
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.setup.paths import here
from tocsin.spark.query.checkpoint import read_committed
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME
from tocsin.spark.tables.published_table import TableFolder

EPOCH, WINDOW, SETTLE = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=10), timedelta(seconds=30)
AFTER = timedelta(seconds=5)
CUSTOMERS = ("a", "b", "c")
Scores = dict[tuple[str, datetime], float]
BUSY = '''"""Customers who do much: purchases and changes of the address together."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, Sources, detector


@detector(source=["purchases", "address_changes"], entity="customer_id", window="10 seconds",
          levels=Levels(email=5, urgent=1000), owner="a@example.com", runbook="docs/runbooks/busy.md", stage="live")
def detect(events: Sources) -> DataFrame:
    bought, moved = (events[name].select("event_time", "customer_id") for name in ("purchases", "address_changes"))
    rows = events.with_window(bought.unionByName(moved))
    return rows.groupBy("window", "customer_id").agg(F.count("*").alias("score"))
'''


QUIET = '''"""Customers who buy nothing: each that the table knows is expected in each window."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Entities, Levels, detector


@detector(source="purchases", entity="customer_id", window="10 seconds", expect=Entities(table="segments"),
          levels=Levels(email=0), owner="a@example.com", runbook="docs/runbooks/quiet.md", stage="live")
def detect(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "customer_id").agg(F.count("*").alias("score"))
'''


class SpendingJobs(DetectJob):
    """The example, with windows and batches short enough for a test: its table's job, and its detector's."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        super().__init__(folder, broker, trigger_seconds=5)
        self.job = "detector:high_spending"
        project = self.settings.project
        shutil.rmtree(project)
        shutil.copytree(here().root / "examples" / "spending", project)
        for path, before, after in (
            ("detectors/high_spending.py", '"10 minutes"', '"10 seconds"'),
            ("detectors/spending_after_change.py", '"10 minutes"', '"10 seconds"'),
            ("detectors/spending_after_change.py", "10 MINUTES", "5 SECONDS"),
            ("tables/segments.toml", '"2 minutes"', '"30 seconds"'),
        ):
            declared = (project / path).read_text()
            assert before in declared
            (project / path).write_text(declared.replace(before, after))
        (project / "detectors" / "busy.py").write_text(BUSY)
        (project / "detectors" / "quiet.py").write_text(QUIET)
        catalog = read_catalog(project)
        assert not catalog.broken
        ensure_topics(self.settings, catalog)
        self.customers, self.purchases = Events(self.settings, "customers"), Events(self.settings, "purchases")
        self.changes = Events(self.settings, "address_changes")
        self.written: list[tuple[str, datetime, float]] = []
        self.changed: list[tuple[str, datetime]] = []

    def keep_table(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tocsin.job", "table", "segments", "--label", "job=x"]
        process = subprocess.Popen(command, env=self.environment, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        return process

    def change(self, customer: str, usual: float) -> None:
        now = datetime.now(UTC)
        self.customers.write(0, now, customer_id=customer, timestamp=text(now), segment="s", usual_spending=usual)
        self.customers.flush()

    def buy(self, chance: random.Random) -> None:
        customer, amount, now = chance.choice(CUSTOMERS), chance.choice([1.0, 20.0]), datetime.now(UTC)
        self.purchases.write(chance.randrange(2), now, customer_id=customer, timestamp=text(now), amount=amount)
        self.written.append((customer, now, amount))

    def move(self, chance: random.Random) -> None:
        customer, now = chance.choice(CUSTOMERS), datetime.now(UTC)
        self.changes.write(chance.randrange(2), now, customer_id=customer, timestamp=text(now))
        self.changed.append((customer, now))

    def tick(self) -> None:
        """Write a tick into each partition of both sources of the join, as ingests that keep up do."""
        for events in (self.purchases, self.changes):
            events.tick(datetime.now(UTC), partitions=2)

    def after_a_change(self) -> Scores:
        """Recount the scores above 200 of purchases within 5 seconds after a change."""
        scores: Scores = defaultdict(float)
        for customer, moment, amount in self.written:
            if any(one == customer and at <= moment <= at + AFTER for one, at in self.changed):
                scores[customer, moment - (moment - EPOCH) % WINDOW] += amount
        return {key: score for key, score in scores.items() if score > 200}

    def together(self) -> Scores:
        """Recount the purchases and changes of each customer, where they are more than 5 in a window."""
        happened = [(customer, at) for customer, at, _ in self.written] + self.changed
        counts = Counter((customer, at - (at - EPOCH) % WINDOW) for customer, at in happened)
        return {key: float(count) for key, count in counts.items() if count > 5}

    def expected(self) -> Scores:
        """Recount the scores above 10, by the rows that the table says; none of them holds too early."""
        rows: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
        folder = TableFolder(self.settings, read_catalog(self.settings.project).table("segments"))
        published = folder.current()
        assert published is not None
        for row in sorted(pq.read_table(folder.place(published)).to_pylist(), key=lambda row: row["valid_from"]):
            rows[row["customer_id"]].append((row["valid_from"], row["usual_spending"]))
        with TopicReader(self.settings, "test", self.settings.names.events("customers")) as topic:
            for message in topic.read(*topic.bounds()):
                document = json.loads(message.value() or b"")
                known = [since for since, usual in rows[document["customer_id"]] if usual == document["usual_spending"]]
                assert known
                assert known[0] > appended_at(message)
        scores: dict[tuple[str, datetime], float] = defaultdict(float)
        for customer, moment, amount in self.written:
            held = [usual for since, usual in rows[customer] if since <= moment]
            if held:
                scores[customer, moment - (moment - EPOCH) % WINDOW] += amount / held[-1]
        return {key: score for key, score in scores.items() if score > 10}

    def silent(self) -> dict[datetime, set[str]]:
        """List whom the detector `quiet` has missed, by window."""
        silent: dict[datetime, set[str]] = defaultdict(set)
        for one in self.findings().values():
            if one.detector == "quiet" and one.window_start is not None:
                silent[one.window_start].add(one.entity["customer_id"])
        return silent

    def reached(self) -> Position:
        """The position of the query, in all topics."""
        (query,) = self.settings.checkpoint(self.job).glob("*/query*")
        return read_committed(query) or {}

    def found(self) -> Scores:
        findings = [one for one in self.findings().values() if f"detector:{one.detector}" == self.job]
        return {(one.entity["customer_id"], one.window_start or EPOCH): one.score for one in findings}


@pytest.mark.long
def test_findings_equal_a_recount_while_the_table_changes_and_jobs_are_killed(tmp_path: Path, broker: Broker) -> None:
    chance, jobs = random.Random(1), SpendingJobs(tmp_path, broker)
    try:
        for customer in CUSTOMERS:
            jobs.change(customer, 10.0)
        detector = jobs.start("high_spending")
        waiting = jobs.await_report(lambda r: r.state is JobState.WAITING and "table" in r.reason)
        assert waiting.reason == f"table 'segments' has no rows yet; they come from job {table_job('segments')}"
        table = jobs.keep_table()
        with repeated(lambda: jobs.buy(chance), 1 / 60):
            jobs.await_report(lambda r: (r.mode, r.state) == (REAL_TIME, JobState.RUNNING))
            await_that(lambda: bool(jobs.found()), READY_SECONDS)
            jobs.change("a", 1.0)
            jobs.change("b", 1000.0)
            jobs.kill(table)
            jobs.keep_table()
            jobs.kill(detector)
            detector = jobs.start("high_spending")
            jobs.await_report(lambda r: (r.pid, r.mode) == (detector.pid, REAL_TIME))
            changed = datetime.now(UTC)
            await_that(lambda: (datetime.now(UTC) - changed) > SETTLE + WINDOW, READY_SECONDS)
        jobs.purchases.flush()
        expected = jobs.expected()
        assert {customer for customer, start in expected if start > changed + SETTLE} == {"a", "c"}, (
            "b spends little now"
        )
        await_that(lambda: not wrong(jobs.found(), expected), READY_SECONDS, lambda: wrong(jobs.found(), expected))
    finally:
        jobs.close()


def wrong(found: Scores, expected: Scores) -> str:
    """Name the windows of which the one says something else than the other."""
    windows = sorted(found.keys() | expected.keys())
    pairs = {one: (found.get(one), expected.get(one)) for one in windows}
    return "\n".join(f"{one}: {pair}" for one, pair in pairs.items() if pair[0] != pytest.approx(pair[1]))


JOINED = "it joins two streams: each finding is made when its window has closed"
UNITED = "it puts streams together whose duplicates are dropped, which real-time mode does not support"


@pytest.mark.long  # tests/spark has both across a restart
@pytest.mark.parametrize(
    ("name", "runs", "recount"),
    [
        ("spending_after_change", (MICRO_BATCH, JOINED), SpendingJobs.after_a_change),
        ("busy", (MICRO_BATCH, UNITED), SpendingJobs.together),
    ],
)
def test_two_streams_joined_or_put_together_equal_a_recount_though_the_job_is_killed(
    tmp_path: Path, broker: Broker, name: str, runs: tuple[str, str], recount: Callable[[SpendingJobs], Scores]
) -> None:
    chance, jobs = random.Random(2), SpendingJobs(tmp_path, broker)
    jobs.job = f"detector:{name}"
    try:
        detector = jobs.start(name)
        with repeated(lambda: jobs.buy(chance), 1 / 60), repeated(lambda: jobs.move(chance), 1):
            running = jobs.await_report(lambda r: (r.mode, r.state) == (runs[0], JobState.RUNNING))
            assert running.reason == runs[1]
            await_that(lambda: bool(jobs.found()), READY_SECONDS)
            before = dict(jobs.found())
            jobs.kill(detector)
            detector = jobs.start(name)
            jobs.await_report(lambda r: (r.pid, r.state) == (detector.pid, JobState.RUNNING))
            await_that(lambda: len(jobs.found()) > len(before) + 2, READY_SECONDS)
        jobs.purchases.flush()
        jobs.changes.flush()
        expected = recount(jobs)
        with repeated(jobs.tick, 1):
            await_that(lambda: not wrong(jobs.found(), expected), READY_SECONDS, lambda: wrong(jobs.found(), expected))
        report = jobs.await_report(lambda r: r.lag_records < 100)
        assert {place.rpartition("/")[0] for place in jobs.reached()} == {
            jobs.settings.names.events(name) for name in ("purchases", "address_changes")
        }
        assert report.watermark is not None
    finally:
        jobs.close()


@pytest.mark.long
def test_the_customers_of_a_changing_table_are_expected_though_the_job_is_killed(
    tmp_path: Path, broker: Broker
) -> None:
    """All buy but d, who comes into the table later: d alone is missing, in each window from the first whole one on."""
    chance, jobs = random.Random(3), SpendingJobs(tmp_path, broker)
    jobs.job = "detector:quiet"
    try:
        for customer in CUSTOMERS:
            jobs.change(customer, 10.0)
        jobs.keep_table()
        with repeated(lambda: jobs.buy(chance), 1 / 20):
            quiet = jobs.start("quiet")
            jobs.await_report(lambda r: (r.mode, r.state) == (MICRO_BATCH, JobState.RUNNING))
            jobs.change("d", 10.0)
            await_that(lambda: any("d" in missing for missing in jobs.silent().values()), READY_SECONDS)
            first = min(start for start, missing in jobs.silent().items() if "d" in missing)
            jobs.kill(quiet)
            jobs.start("quiet")
            await_that(lambda: max(jobs.silent()) >= first + 4 * WINDOW, READY_SECONDS)
        folder = TableFolder(jobs.settings, read_catalog(jobs.settings.project).table("segments"))
        published = folder.current()
        assert published is not None
        rows = pq.read_table(folder.place(published)).to_pylist()
        (since,) = (row["valid_from"] for row in rows if row["customer_id"] == "d")
        silent = jobs.silent()
    finally:
        jobs.close()
    assert first == since - (since - EPOCH) % WINDOW + WINDOW
    later = [start for start in silent if start >= first]
    assert sorted(later) == [first + number * WINDOW for number in range(len(later))]
    assert all(silent[start] == {"d"} for start in later)
