"""Check what only Spark can tell of views, without Kafka and before any job starts."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tocsin.model.errors import ConfigError, Fault
from tocsin.project.catalog import Catalog
from tocsin.sparkjob.declared_function import DeclaredFunction
from tocsin.sparkjob.events import no_records, parse_events, prepare_events
from tocsin.sparkjob.query_plan import QueryPlan
from tocsin.tables.spark.joined_tables import no_rows
from tocsin.views.spark.view_plan import FUNCTION, read_plan


def view_plans(spark: SparkSession, catalog: Catalog) -> tuple[dict[str, QueryPlan], list[Fault]]:
    """Read the plan of each view by name, and the faults: plans and patterns that Spark, Java or Tocsin refuses."""
    found: dict[str, QueryPlan] = {}
    faults: list[Fault] = []
    for name, spec in catalog.views.items():
        source = catalog.source(spec.source)
        try:
            events = prepare_events(parse_events(no_records(spark), source), spec.computed, source.lateness)
            tables = no_rows(spark, catalog, spec.tables, spec.path)
            found[name] = read_plan(DeclaredFunction(spec.path, FUNCTION)(events, tables), spec, source)
        except ConfigError as error:
            faults += error.faults
    return found, faults
