"""A detector that joins a changing table, as real processes: findings equal a recount across changes and kills."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.rig.broker import Broker
from tests.rig.compute_job import Events, load
from tests.rig.detect_job import READY_SECONDS, DetectJob, text
from tests.rig.waiting import await_that
from tocsin.kafka.reader import TopicReader, appended_at
from tocsin.kafka.topics import ensure_topics
from tocsin.model.job_report import JobState
from tocsin.model.names import table_job
from tocsin.project.catalog import read_catalog
from tocsin.provision.paths import here
from tocsin.sparkjob.query.work import REAL_TIME
from tocsin.tables.published_table import TableFolder

EPOCH, WINDOW, SETTLE = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=10), timedelta(seconds=30)
CUSTOMERS = ("a", "b", "c")
Scores = dict[tuple[str, datetime], float]


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
            ("tables/segments.toml", '"2 minutes"', '"30 seconds"'),
        ):
            declared = (project / path).read_text()
            assert before in declared
            (project / path).write_text(declared.replace(before, after))
        catalog = read_catalog(project)
        assert not catalog.broken
        ensure_topics(self.settings, catalog)
        self.customers, self.purchases = Events(self.settings, "customers"), Events(self.settings, "purchases")
        self.written: list[tuple[str, datetime, float]] = []

    def keep_table(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tocsin.tables", "segments", "--label", "job=x"]
        process = subprocess.Popen(command, env=self._environment(), stdout=self._log, stderr=self._log)
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

    def found(self) -> Scores:
        findings = self.findings().values()
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
        with load(lambda: jobs.buy(chance), each_second=60):
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
