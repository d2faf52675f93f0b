"""Run the job of one source: raw records in, events and quarantined records out, in one stateless real-time query."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from tocsin.ingest.network_ranges import with_usable_networks
from tocsin.ingest.quarantined_record import write_record
from tocsin.ingest.spark.envelope import OBSERVATION, add_event, observe, route
from tocsin.ingest.spark.mover import Mover
from tocsin.ingest.spark.parse import parsed
from tocsin.ingest.spark.patterns import check_source
from tocsin.ingest.ticks import TrueAfter, by_clock
from tocsin.job import Job
from tocsin.kafka.reader import appended_at
from tocsin.kafka.topic_set import TopicSet
from tocsin.model.job_report import MUCH_IGNORED, MUCH_QUARANTINED
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.sparkjob.entry import run_query
from tocsin.sparkjob.query.poison import Read, SetAside
from tocsin.sparkjob.query.work import Run

LATEST_RECORDS = 1_000
"""The share is taken over at least so many of the latest records."""
ENOUGH_IGNORED = 100
"""When the latest records were all ignored, so many are enough to say so."""


class RecentShare:
    """Measures batch by batch which share of the latest records went to quarantine, or was ignored. Pure."""

    def __init__(self, enough_if_all: int = LATEST_RECORDS) -> None:
        """Count nothing yet; so many records are enough where there is no other one among them."""
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


class Ingest(Mover):
    """The work of `ingest:<source>`; see `tocsin.sparkjob.query.work.Work`."""

    observation = OBSERVATION

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        source = catalog.recorded_source(name)
        super().__init__(settings, catalog, catalog.upstream(name)[0], source)
        self.writes = (*self.writes, settings.names.quarantine(name))
        self._rules = read_row_rules(settings.project, source)
        self._quarantined, self._ignored = RecentShare(), RecentShare(enough_if_all=ENOUGH_IGNORED)
        self._tried = False
        self._old_networks = ""

    def check(self, spark: SparkSession) -> None:
        """Try the patterns and the files of networks, once."""
        if not self._tried:
            check_source(spark, self.source, self._rules)
            self.source, faults = with_usable_networks(self.source, self._settings.checkpoint(self.job) / "networks")
            self._old_networks = f"looks up in the file before, since {faults[0]}; " if faults else ""
            self._tried = True

    def make_rows(self, read: Read) -> DataFrame:
        """Make what is written for the records that `read` gives."""
        events = add_event(parsed(read(self.reads), self.source, self._rules), self.source)
        return route(observe(events, self._rules), self.source, self._settings.names, self._rules)

    def set_aside(self, record: SetAside) -> None:
        """Put the record into quarantine."""
        write_record(self._settings, self.source, record.partition, record.offset, record.error)

    def count_figures(self, figures: dict[str, Any]) -> None:
        """Add the figures, and how much went to quarantine or was ignored."""
        latest = figures.pop("latest_event_time", None)
        super().count_figures(figures)
        if latest is not None:
            self._counts["latest_event_time"] = datetime.fromisoformat(latest).timestamp()
        records, ignored = figures.get("records") or 0, figures.get("ignored") or 0
        self._quarantined.add(records - ignored, figures.get("quarantined") or 0)
        self._ignored.add(records, ignored)
        self._counts |= {"bad_ratio": self._quarantined.value, "ignored_ratio": self._ignored.value}

    def sentence(self) -> str:
        """Say that much goes to quarantine or is ignored, if it is; else what it does."""
        if self._quarantined.value > MUCH_QUARANTINED:
            return f"{self._quarantined.value:.1%} of the last {self._quarantined.records} records went to quarantine"
        if self._ignored.value > MUCH_IGNORED:
            share, records = self._ignored.value, self._ignored.records
            return f"`ignore` leaves out {share:.1%} of the last {records} records; a pattern may be too wide"
        ignored = int(self._counts.get("ignored", 0))
        return self._old_networks + super().sentence() + (f"; {ignored:,} records were ignored" if ignored else "")

    def true_after(self, run: Run, topics: TopicSet) -> TrueAfter:
        """Ask the broker's clock first, and then for the ends of the raw topic."""
        return by_clock(run.reporter, lambda: topics.bounds()[1])

    def complete_through(self, run: Run) -> datetime | None:
        """Return up to when all that was appended is in the events topic, if that is news."""
        if self._ticker is None or not self._ticker.asks:
            return None
        moment = self._ticker.read(run.position)  # enough while nothing comes in, and costs nothing
        if self._ticker.asks:
            moment = self._ticker.read(run.read_positions.offsets()) or moment
        return moment

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the record."""
        return appended_at(message)


def run(job: Job) -> None:
    """Run the job of one source; errors as of `run_query`."""
    run_query(job, Ingest)
