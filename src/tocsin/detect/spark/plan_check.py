"""Check what only Spark can tell of sources and detectors, without Kafka and before any job starts."""

from __future__ import annotations

from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.source import Source
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.detect.spark.step_query import detector_function
from tocsin.ingest.spark.patterns import check_source
from tocsin.platform.environments import without_elsewhere
from tocsin.platform.failures import first_line
from tocsin.platform.time_limit import time_limit
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.spark.events import planned_events
from tocsin.spark.tables.spark.joined_tables import no_rows


def detector_plans(spark: SparkSession, project: Path, catalog: Catalog) -> tuple[dict[str, DetectorPlan], list[Fault]]:
    """Read the plan of each detector by name, and the faults: plans and patterns that Spark, Java or Tocsin refuses."""
    found: dict[str, DetectorPlan] = {}
    faults: list[Fault] = []
    for source in catalog.sources.values():
        faults += _pattern_faults(spark, project, source)
    for name, spec in without_elsewhere(catalog.detectors).items():
        try:
            found[name] = plan_of(spark, spec, catalog)
        except ConfigError as error:
            faults += error.faults
        except (PySparkException, Py4JJavaError) as error:  # it has no room for the plan, say
            faults.append(Fault(str(spec.path), f"Spark fails on its plan: {first_line(error)}", key=spec.function))
    return found, faults


def plan_of(spark: SparkSession, spec: DetectorSpec, catalog: Catalog) -> DetectorPlan:
    """Read the plan of the detector `spec`; ConfigError with all that Spark or Tocsin refuses in it."""
    sources = catalog.sources_of(spec)
    events = planned_events(spark, sources, spec, spec.path)
    rows = detector_function(spec, sources[0])(events, no_rows(spark, catalog, spec.tables, spec.path))
    with time_limit(spec.path):
        return read_plan(rows, spec, sources)


def _pattern_faults(spark: SparkSession, project: Path, source: Source) -> list[Fault]:
    try:
        rules = read_row_rules(project, source)
    except ConfigError:
        rules = ()  # reported already, without Spark
    try:
        check_source(spark, source, rules)
    except ConfigError as error:
        return list(error.faults)
    return []
