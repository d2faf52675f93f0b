"""The past of a source that flows feed: its events, made of those of the source with records that they begin with."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.spark.table_versions import tables_of_days
from tocsin.ingest.flows.spark.flow_plan import OBSERVATION, apply_flow, make_events, plan_flow
from tocsin.spark.columns import JSON_TIMES
from tocsin.spark.events import event_columns
from tocsin.spark.tables.spark.joined_tables import JoinedTables


class FlowedEvents:
    """Makes events through flows, in one Spark session."""

    def __init__(self, spark: SparkSession, settings: Settings, catalog: Catalog) -> None:
        self._spark, self._settings, self._catalog = spark, settings, catalog

    def made_of(self, events: DataFrame, origin: Source, source: Source) -> DataFrame:
        """Make the events of `source` that follow from `events` of `origin`: those of the stream, by identity too.

        What a flow leaves out on the stream is left out here. ConfigError if a flow on the way cannot be planned; a
        retry does not help. TocsinError if a table that it joins cannot be had.
        """
        if source.name == origin.name:
            return events
        records = self._records(events, origin, source)
        kinds = ", ".join(f"`{name}` {kind}" for name, kind in event_columns(source).items())
        read = records.select(F.from_json(F.col("value").cast("string"), kinds).alias("event"))
        return read.select(*[F.col(f"event.`{name}`") for name in columns_of(source)])

    def _records(self, events: DataFrame, origin: Source, source: Source) -> DataFrame:
        """Make the records of the events topic of `source`; none for a source that does not come from `origin`."""
        if source.name == origin.name:
            return events.select(F.to_json(F.struct("*"), JSON_TIMES).alias("value"))
        spec = next((one for one in self._catalog.flows.values() if one.to == source.name), None)
        if spec is None:
            return self._spark.createDataFrame([], "value string")
        flow, sources = plan_flow(self._spark, spec, self._catalog).function, self._catalog.sources_of(spec)
        tables = self._tables(spec, events)
        rows = apply_flow(flow, spec, sources, lambda one: self._records(events, origin, one), tables)
        made = make_events(rows, spec, source, self._settings.names, f"{OBSERVATION}:{spec.name}")  # one in each plan
        return made.select("value")

    def _tables(self, spec: FlowSpec, events: DataFrame) -> JoinedTables | None:
        if not spec.tables:
            return None
        times = F.to_date("event_time")
        ((first, last),) = events.agg(F.min(times), F.max(times)).collect()
        days = [] if first is None else [first + timedelta(days=n) for n in range((last - first).days + 1)]
        return tables_of_days(self._spark, self._settings, spec, days)
