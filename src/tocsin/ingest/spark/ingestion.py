"""Run the job of one source: raw records in, events and quarantined records out, in one stateless real-time query."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from tocsin.ingest.quarantined_record import QuarantineRatio, write_record
from tocsin.ingest.spark.envelope import OBSERVATION, add_event, observe, route
from tocsin.ingest.spark.mover import Mover
from tocsin.ingest.spark.parse import parsed
from tocsin.ingest.spark.patterns import check_source
from tocsin.ingest.ticks import TrueAfter, by_clock
from tocsin.kafka.reader import TopicReader, appended_at
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.sparkjob.query.poison import SetAside
from tocsin.sparkjob.query.work import Run


class Ingest(Mover):
    """The work of `ingest:<source>`; see `tocsin.sparkjob.query.work.Work`."""

    observation = OBSERVATION

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        source = catalog.recorded_source(name)
        super().__init__(settings, catalog, catalog.upstream(name)[0], source)
        self.writes = (*self.writes, settings.names.quarantine(name))
        self._rules = read_row_rules(settings.project, source)
        self._ratio = QuarantineRatio()
        self._patterns_tried = False

    def check(self, spark: SparkSession) -> None:
        """Try the patterns, once."""
        if not self._patterns_tried:
            check_source(spark, self.source, self._rules)
            self._patterns_tried = True

    def make_rows(self, records: DataFrame) -> DataFrame:
        """Make what is written for `records`."""
        read = add_event(parsed(records, self.source, self._rules), self.source)
        return route(observe(read, self._rules), self.source, self._settings.names, self._rules)

    def set_aside(self, record: SetAside) -> None:
        """Put the record into quarantine."""
        write_record(self._settings, self.source, record.partition, record.offset, record.error)

    def count_figures(self, figures: dict[str, Any]) -> None:
        """Add the figures, and how much went to quarantine."""
        latest = figures.pop("latest_event_time", None)
        super().count_figures(figures)
        if latest is not None:
            self._counts["latest_event_time"] = datetime.fromisoformat(latest).timestamp()
        self._ratio.add(figures.get("records") or 0, figures.get("quarantined") or 0)
        self._counts["bad_ratio"] = self._ratio.value

    def sentence(self) -> str:
        """Say that much goes to quarantine, if it does."""
        return self._ratio.sentence() or super().sentence()

    def true_after(self, run: Run, topic: TopicReader) -> TrueAfter:
        """Ask the broker's clock first, and then for the ends of the raw topic."""
        return by_clock(run.reporter, lambda: topic.bounds()[1])

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
