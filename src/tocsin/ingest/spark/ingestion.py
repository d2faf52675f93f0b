"""Run the job of one source: raw records in, events and quarantined records out, in one stateless real-time query."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import MUCH_IGNORED, MUCH_QUARANTINED
from tocsin.declare.settings import Settings
from tocsin.ingest.network_ranges import with_usable_networks
from tocsin.ingest.quarantined_record import write_record
from tocsin.ingest.spark.envelope import OBSERVATION, add_event, observe, route
from tocsin.ingest.spark.mover import PLAN, Mover
from tocsin.ingest.spark.parse import parsed
from tocsin.ingest.spark.patterns import check_source
from tocsin.ingest.ticks import TrueAfter, by_clock
from tocsin.job import Job
from tocsin.platform.kafka.reader import appended_at
from tocsin.platform.kafka.topic_set import TopicSet
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.spark.entry import run_query
from tocsin.spark.events import optimize_once
from tocsin.spark.query.checkpoint import Checkpoint
from tocsin.spark.query.poison import Poison, Read, SetAside
from tocsin.spark.query.progress import BatchProgress
from tocsin.spark.query.stream_job import StreamJob, StreamSpec
from tocsin.spark.query.work import Run
from tocsin.spark.query_plan import QueryPlan

LATEST_RECORDS = 1_000
"""The share is taken over at least so many of the latest records."""
ENOUGH_IGNORED = 100
"""When the latest records were all ignored, so many are enough to say so."""


class RecentShare:
    """Measures batch by batch which share of the latest records went to quarantine, or was ignored. Pure."""

    def __init__(self, enough_if_all: int = LATEST_RECORDS) -> None:
        """Treat `enough_if_all` records as enough where there is no other one among them."""
        self._batches: deque[tuple[int, int]] = deque()
        self._enough_if_all = enough_if_all
        self.records = self._counted = 0

    def add(self, records: int, counted: int) -> None:
        """Count a batch of `records`, `counted` among them; forget batches beyond the latest 1,000 records."""
        self._batches.append((records, counted))
        self.records, self._counted = self.records + records, self._counted + counted
        while self.records - self._batches[0][0] >= LATEST_RECORDS:
            old_records, old_counted = self._batches.popleft()
            self.records, self._counted = self.records - old_records, self._counted - old_counted

    @property
    def value(self) -> float:
        """From 0 to 1; 0 before there are enough records."""
        enough = self._enough_if_all if self._counted == self.records else LATEST_RECORDS
        return self._counted / self.records if self.records >= enough else 0.0


class Ingest:
    """What `ingest:<source>` does."""

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.source = catalog.recorded_source(name)
        self.mover = Mover(settings, catalog, self.source, true_after=_by_clock, appended_at=appended_at)
        self._settings, self._rules = settings, read_row_rules(settings.project, self.source)
        self._quarantined, self._ignored = RecentShare(), RecentShare(enough_if_all=ENOUGH_IGNORED)
        self._tried = False
        self._old_networks = ""

    def plan(self, spark: SparkSession) -> QueryPlan:
        """Try the patterns and the files of networks, once."""
        if not self._tried:
            check_source(spark, self.source, self._rules)
            networks = self._settings.checkpoint(self.mover.job) / "networks"
            self.source, faults = with_usable_networks(self.source, networks)
            self._old_networks = f"looks up in the file before, since {faults[0]}; " if faults else ""
            self._tried = True
        return PLAN

    def open(self, run: Run, _: str) -> Checkpoint:
        """Go on behind what is committed."""
        self.mover.fit_topics(run, self.mover.committed(), lambda *_: remove_tree(self.mover.query))
        return self.mover.resume(run, {})

    def rows(self, read: Read, *_: object) -> DataFrame:
        """Make events, and records for quarantine, of raw records."""
        events = add_event(parsed(read(self.mover.reads), self.source, self._rules), self.source)
        return optimize_once(route(observe(events, self._rules), self.source, self._settings.names, self._rules))

    def set_aside(self, _: Run, record: SetAside) -> None:
        """Put the record into quarantine."""
        write_record(self._settings, self.source, record.partition, record.offset, record.error)

    def take(self, run: Run, figures: dict[str, Any], progress: BatchProgress) -> dict[str, Any]:
        """Find how much went to quarantine or was ignored."""
        if (latest := figures.pop("latest_event_time", None)) is not None:
            run.counts["latest_event_time"] = datetime.fromisoformat(latest).timestamp()
        records, ignored = figures.get("records") or 0, figures.get("ignored") or 0
        self._quarantined.add(records - ignored, figures.get("quarantined") or 0)
        self._ignored.add(records, ignored)
        run.counts |= {"bad_ratio": self._quarantined.value, "ignored_ratio": self._ignored.value}
        return self.mover.take(run, figures, progress)

    def reason(self, run: Run) -> str:
        """Say that much goes to quarantine or is ignored, if it is; else what it does."""
        if self._quarantined.value > MUCH_QUARANTINED:
            return f"{self._quarantined.value:.1%} of the last {self._quarantined.records} records went to quarantine"
        if self._ignored.value > MUCH_IGNORED:
            share, records = self._ignored.value, self._ignored.records
            return f"`ignore` leaves out {share:.1%} of the last {records} records; a pattern may be too wide"
        ignored = int(run.counts.get("ignored", 0))
        return self._old_networks + PLAN.reason + (f"; {ignored:,} records were ignored" if ignored else "")

    def look(self, run: Run) -> None:
        """Report up to when all that was appended is in the events topic."""
        ticker = self.mover.ticker
        if ticker is None or not ticker.asks:
            return
        moment = ticker.read(run.position)  # enough while nothing comes in, and costs nothing
        if ticker.asks:
            moment = ticker.read(run.read_positions.offsets()) or moment
        if moment is not None:
            run.reporter.update(complete_through=moment)


def ingestion(settings: Settings, name: str) -> StreamJob:
    """Make the job `ingest:<source>`: raw records in, events and quarantined records out."""
    ingest = Ingest(settings, name)
    mover = ingest.mover
    path = settings.project / "sources" / f"{name}.toml"
    return StreamJob(settings, StreamSpec(
        job=mover.job, query=name, path=path, folders=mover.folders, poison=Poison(mover.folders),
        topics=lambda: mover.reads, writes=(mover.writes, settings.names.quarantine(name)), sink=mover.sink,
        source={"includeHeaders": "true"}, batch_seconds=settings.spark.ingest_trigger_seconds, is_repeatable=True,
        plan=ingest.plan, open=ingest.open, rows=ingest.rows, set_aside=ingest.set_aside,
        choose=lambda run, *_: mover.choose(run, ingest.reason(run)), begin=mover.begin, look=ingest.look,
        describe=lambda run, choice: mover.describe(run, choice, ingest.reason(run)), take=ingest.take,
        restart_reason=mover.restart_reason, observations=(OBSERVATION,), appended_at=appended_at,
    ))  # fmt: skip


def _by_clock(run: Run, topics: TopicSet) -> TrueAfter:
    return by_clock(run.reporter, lambda: topics.bounds()[1])


def run(job: Job) -> None:
    """Run the job of one source; errors as of `run_query`."""
    run_query(job, ingestion)
