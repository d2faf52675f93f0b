"""`python -m bench.same_query QUESTION WAY FILE`: one question to the published days, written by hand.

Questions: `failed`, what failed_logins asks: who failed more than 50 times within ten seconds (a selective scan);
`keyed`, events and the latest time of each user, no event left out. Ways: `buckets`, in Spark on the table that knows
the buckets of sealed files; `files`, in Spark on the same files as anybody would read them; `duckdb`, on those files.
The answer and what it took are written to FILE.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.history import cost_of
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings, load_settings
from tocsin.history.day_status import published_days
from tocsin.history.day_versions import DayVersion, paths
from tocsin.history.places import Places
from tocsin.history.spark.sealed_days import sealed_events
from tocsin.spark.batch_session import running_batch

FAILED, KEYED = "failed", "keyed"
BUCKETS, FILES, DUCKDB = "buckets", "files", "duckdb"
_WINDOW = "10 seconds"
_MICROS = 10_000_000

Answer = list[list[Any]]


def main() -> int:
    """Ask once, as the first thing that a new process does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=[FAILED, KEYED])
    parser.add_argument("way", choices=[BUCKETS, FILES, DUCKDB])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    settings = load_settings()
    source = read_catalog(settings.project).source("logins")
    days = dict(published_days(settings, source))
    answer: Answer = []
    if given.way == DUCKDB:
        cost = cost_of(lambda: answer.extend(_duckdb(settings, _files(settings, source, days), given.question)))
    else:
        with _session(settings) as spark:
            cost = cost_of(
                lambda: answer.extend(_spark(_events(spark, settings, source, days, given.way), given.question))
            )
    given.file.write_text(json.dumps({"answer": answer, "seconds": cost.wall, "cpu": cost.cpu}), encoding="utf-8")
    return 0


def _files(settings: Settings, source: Source, days: dict[date, DayVersion]) -> list[str]:
    places = Places.of(settings, source.name)
    return [str(path) for day, version in days.items() for path in paths(places, day, version)]


def _session(settings: Settings) -> AbstractContextManager[SparkSession]:
    return running_batch(settings, "by-hand:bench")


def _events(
    spark: SparkSession, settings: Settings, source: Source, days: dict[date, DayVersion], way: str
) -> DataFrame:
    if way == BUCKETS:
        return sealed_events(spark, Places.of(settings, source.name), source, days)
    # Without the option the folders of the days would become a column.
    return spark.read.option("recursiveFileLookup", "true").parquet(*_files(settings, source, days))


def _spark(events: DataFrame, question: str) -> Answer:
    if question == FAILED:
        failures = events.where("action = 'login failed'")
        counts = failures.groupBy(F.window("event_time", _WINDOW), "user_id").agg(
            F.count("*").alias("n"), F.max("event_time").alias("latest")
        )
        rows = counts.where("n > 50").select("user_id", F.unix_micros("window.start"), "n").collect()
    else:
        users = events.groupBy("user_id").agg(F.count("*").alias("n"), F.max("event_time").alias("latest"))
        rows = users.agg(F.count("*"), F.sum("n"), F.unix_micros(F.max("latest"))).collect()
    return [list(row) for row in rows]


def _duckdb(settings: Settings, files: list[str], question: str) -> Answer:
    events = f"read_parquet({files}, hive_partitioning = false)"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.execute(f"SET temp_directory = '{settings.state}'")
        if question == FAILED:
            start = f"epoch_us(event_time) // {_MICROS} * {_MICROS}"
            counts = f"SELECT user_id, {start} AS start, count(*) AS n, max(event_time) FROM {events}"
            query = f"SELECT user_id, start, n FROM ({counts} WHERE action = 'login failed' GROUP BY ALL HAVING n > 50)"
        else:
            users = f"SELECT user_id, count(*) AS n, max(event_time) AS latest FROM {events} GROUP BY ALL"
            query = f"SELECT count(*), sum(n)::BIGINT, epoch_us(max(latest)) FROM ({users})"
        return [list(row) for row in connection.execute(query).fetchall()]


if __name__ == "__main__":
    sys.exit(main())
