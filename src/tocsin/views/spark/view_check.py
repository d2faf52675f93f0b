"""Check what only Spark can tell of views, without Kafka and before any job starts."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tocsin.model.errors import ConfigError, Fault
from tocsin.project.catalog import Catalog
from tocsin.runtime.time_limit import time_limit
from tocsin.sparkjob.declared_function import DeclaredFunction
from tocsin.sparkjob.events import planned_events
from tocsin.sparkjob.query_plan import QueryPlan
from tocsin.tables.spark.joined_tables import no_rows
from tocsin.views.spark.view_plan import FUNCTION, read_plan


def view_plans(spark: SparkSession, catalog: Catalog) -> tuple[dict[str, QueryPlan], list[Fault]]:
    """Read the plan of each view by name, and the faults: plans and patterns that Spark, Java or Tocsin refuses."""
    found: dict[str, QueryPlan] = {}
    faults: list[Fault] = []
    for name, spec in catalog.views.items():
        sources = catalog.sources_of(spec)
        try:
            events = planned_events(spark, sources, spec.computed, spec.path)
            tables = no_rows(spark, catalog, spec.tables, spec.path)
            rows = DeclaredFunction(spec.path, FUNCTION)(events, tables)
            with time_limit(spec.path):
                found[name] = read_plan(rows, spec, sources)
        except ConfigError as error:
            faults += error.faults
    return found, faults
