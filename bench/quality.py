"""`python -m bench.quality`: what judging a day costs, beside native Great Expectations and beside DuckDB.

The same ten rules, three ways: Tocsin's profile in one Spark aggregate, and Great Expectations on its one row; Great
Expectations on the DataFrame itself, uncached, once to tell whether the rules hold and once to tell what it saw, as a
report needs it; and the aggregate in DuckDB, which is the floor. Spark is warm: each way runs once before it is
measured. The profile has more figures than the rules need: those of drift, and of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.figures import table
from bench.history import Cost, cost_of
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.judging import day_checks, row_checks
from tocsin.quality.spark.day_gate import profile_of
from tocsin.quality.suites.suite_catalog import Suites, read_suites
from tocsin.setup.paths import here
from tocsin.spark.batch_session import running_batch

_DAY = date(2026, 1, 15)
_ACTIONS = ["login succeeded", "login failed"]
_ADDRESS = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"
_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("column_values_to_not_be_null", {"column": "user_id"}),
    ("column_values_to_not_be_null", {"column": "ip_address"}),
    ("column_values_to_be_in_set", {"column": "action", "value_set": _ACTIONS}),
    ("column_values_to_match_regex", {"column": "ip_address", "regex": _ADDRESS}),
    ("column_value_lengths_to_be_between", {"column": "user_id", "min_value": 1, "max_value": 256}),
]
_FIGURES: list[tuple[str, dict[str, Any]]] = [
    ("column_values_to_be_between", {"column": "rows", "min_value": 1}),
    ("column_values_to_be_between", {"column": "message.null_ratio", "max_value": 0.9}),
    ("column_values_to_be_between", {"column": "user_id.distinct", "min_value": 100}),
    ("column_values_to_be_between", {"column": "ip_address.distinct", "min_value": 100}),
    ("column_values_to_be_between", {"column": "last_event", "min_value": "2026-01-15T23:00:00Z"}),
]
# The same five figures as Great Expectations takes them of a table.
_NATIVE: list[tuple[str, dict[str, Any]]] = [
    ("table_row_count_to_be_between", {"min_value": 1}),
    ("column_values_to_not_be_null", {"column": "message", "mostly": 0.1}),
    ("column_unique_value_count_to_be_between", {"column": "user_id", "min_value": 100}),
    ("column_unique_value_count_to_be_between", {"column": "ip_address", "min_value": 100}),
    ("column_max_to_be_between", {"column": "event_time", "min_value": "2026-01-15T23:00:00"}),
]


def main() -> int:
    """Measure; 1 when the ways do not agree that the day is good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the day (default a million)")
    parser.add_argument("--folder", type=Path, default=here().bench / "quality", help="scratch; it is emptied")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    settings = Settings(project=given.folder, state=given.folder / "state")
    source = read_source(here().root / "sources/logins.toml")
    print(f"a day of {given.rows:,} rows, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}")
    try:
        return _measured(settings, source, given.rows)
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)


def _measured(settings: Settings, source: Source, rows: int) -> int:
    suites, files = _suites(settings.project, source), settings.project / "day"
    facts = DayFacts(
        source="logins", day=_DAY, version="v1", rows=rows, landed=rows, duplicates=0, imported=0, late=0,
        partitions={}, newest_event=None, newest_append=None, read_through=None, previous_rows=None,
    )  # fmt: skip
    with running_batch(settings, "judge:bench") as spark:
        _make(spark, rows, files)
        day = spark.read.parquet(str(files))

        def judged() -> list[bool]:
            profile = profile_of(day, source, suites.rows, facts)
            checks = [*day_checks(suites.day, profile, {}), *row_checks(suites.rows, profile, {})]
            return [check.passed for check in checks]

        ways: dict[str, Callable[[], list[bool]]] = {
            "Tocsin: profile, and Great Expectations on it": judged,
            "the profile alone": lambda: [bool(profile_of(day, source, suites.rows, facts).figures)],
            "Great Expectations on the DataFrame, whether": lambda: _native(day, "BOOLEAN_ONLY"),
            "Great Expectations on the DataFrame, and what it saw": lambda: _native(day, "SUMMARY"),
            "DuckDB: the same aggregate": lambda: _duckdb(files),
        }
        costs, held = dict[str, Cost](), list[bool]()
        for what, way in ways.items():
            way()
            costs[what] = cost_of(lambda way=way: held.extend(way()))  # type: ignore[misc]  # mypy: no lambda with a default
    own = costs["Tocsin: profile, and Great Expectations on it"]
    print(table([_row(what, cost, rows, own) for what, cost in costs.items()]))
    print(f"\nload {os.getloadavg()[0]:.2f}" + ("" if all(held) else "; NOT TRUE: a way finds the day bad"))
    return int(not all(held))


def _row(what: str, cost: Cost, rows: int, own: Cost) -> dict[str, object]:
    return cost.row(what, rows) | {"CPU beside Tocsin": f"{cost.cpu / own.cpu:.2f}"}


def _suites(project: Path, source: Source) -> Suites:
    folder = project / "expectations"
    folder.mkdir(parents=True)
    for stage, entries in (("rows", _ROWS), ("day", _FIGURES)):
        suite = {"name": f"logins.{stage}", "expectations": _entries(entries)}
        (folder / f"logins.{stage}.json").write_text(json.dumps(suite))
    return read_suites(project, source)


def _entries(rules: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"type": f"expect_{kind}", "kwargs": kwargs, "meta": {"name": f"rule{number}"}}
        for number, (kind, kwargs) in enumerate(rules)
    ]


def _make(spark: SparkSession, rows: int, files: Path) -> None:
    begin = int(datetime(_DAY.year, _DAY.month, _DAY.day, tzinfo=UTC).timestamp() * 1e6)
    at = F.timestamp_micros((F.lit(begin) + F.col("id") * F.lit(86_400_000_000 // rows)).cast("bigint"))
    part = [(F.rand(seed) * 250).cast("int").cast("string") for seed in (2, 3)]
    day = spark.range(0, rows, 1, 2).select(
        at.alias("event_time"),
        F.concat(F.lit("user"), (F.pow(F.rand(1), 2) * rows / 10).cast("int")).alias("user_id"),
        at.alias("timestamp"),
        F.concat(F.lit("10.0."), part[0], F.lit("."), part[1]).alias("ip_address"),
        F.when(F.rand(4) < 0.1, _ACTIONS[1]).otherwise(_ACTIONS[0]).alias("action"),
        F.when(F.rand(5) < 0.3, F.lit("a message of some length")).alias("message"),
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    day.write.parquet(str(files))


def _native(day: DataFrame, form: str) -> list[bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gx = import_module("great_expectations")
        suite = import_module("great_expectations.core.expectation_suite").ExpectationSuite
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False}
        asset = context.data_sources.add_spark("s", persist=False).add_dataframe_asset("a")
        batch = asset.add_batch_definition_whole_dataframe("b").get_batch({"dataframe": day})
        entries = [entry | {"meta": {}} for entry in _entries(_ROWS + _NATIVE)]
        results = batch.validate(suite(name="native", expectations=entries), result_format=form).results
    return [bool(result.success) for result in results]


def _duckdb(files: Path) -> list[bool]:
    """The figures of the profile; quantiles and estimates are DuckDB's own."""
    texts = ("user_id", "ip_address", "action", "message")
    asked = ["count(*)", "min(event_time)", "max(event_time)"]
    asked += [f"count_if(hour(event_time) = {hour})" for hour in range(24)]
    asked += [f"count_if({name} IS NULL)" for name in (*texts, "timestamp")]
    asked += [f"approx_count_distinct({name})" for name in texts] + [f"max(length({name}))" for name in texts]
    asked += ["count_if(user_id IS NULL)", "count_if(ip_address IS NULL)", f"count_if(action NOT IN {tuple(_ACTIONS)})"]
    asked += [
        f"count_if(NOT regexp_matches(ip_address, '{_ADDRESS}'))",
        "count_if(length(user_id) NOT BETWEEN 1 AND 256)",
    ]
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.execute(f"SET temp_directory = '{folder}'")
        found = connection.execute(f"SELECT {', '.join(asked)} FROM read_parquet('{files}/*.parquet')").fetchone()
    return [found is not None and found[0] > 0, *(count == 0 for count in (found or ())[-5:])]


if __name__ == "__main__":
    sys.exit(main())
