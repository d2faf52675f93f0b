"""`python -m bench.history`: what sealing costs beside DuckDB that sorts and writes the same files, and if it is true.

DuckDB is the floor: it reads the landed files, drops nothing, sorts by key and time and writes zstd. Tocsin also
drops duplicates, spreads events over buckets, hashes its files, judges nothing here, and publishes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.figures import table
from bench.past import Expected, Past, day_before, land_past
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.history.spark.seal import Sealer
from tocsin.history.spark.sealed_days import sealed_events
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.day_profile import Profile
from tocsin.quality.spark.day_gate import DayGate
from tocsin.quality.verdict import Verdict
from tocsin.setup.paths import here
from tocsin.spark.batch_session import running_batch


@dataclass(frozen=True)
class Cost:
    """What a piece of work took: seconds by the clock, and CPU-seconds of this process and all its children."""

    wall: float
    cpu: float

    def row(self, what: str, rows: int) -> dict[str, object]:
        """As a row of a table."""
        million = rows / 1e6
        figures = {"seconds": self.wall, "CPU-s": self.cpu, "CPU-s per 1 M": f"{self.cpu / million:.2f}"}
        return {"work": what, "M rows": million} | figures | {"k rows per CPU-s": rows / self.cpu / 1000}


class Passing(DayGate):
    """A gate that lets every day pass."""

    def __init__(self) -> None:
        """It reads no suite."""

    def profiles(self, sealed: DataFrame, day: str, facts: Sequence[DayFacts]) -> dict[date, Profile]:
        """Nothing is counted."""
        return {}

    def judge(self, day: date, sealed: DataFrame, facts: DayFacts, profile: Profile | None = None) -> Verdict:
        """Nothing is checked."""
        return Verdict(subject=facts.source, day=day, run_id=facts.version, judged_at=datetime.now(UTC), checks=())


def main() -> int:
    """Measure; 1 when the sealed days do not hold the findings that were planted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each day (default a million)")
    parser.add_argument("--days", type=int, default=2, help="how many (default 2); the first one warms Spark up")
    parser.add_argument("--folder", type=Path, default=here().bench / "history", help="scratch; it is emptied")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    settings = Settings(project=here().root, state=given.folder / "state")
    source = read_catalog(settings.project).source("logins")
    past = Past(day_before(datetime.now(UTC), given.days), given.days, given.rows)
    print(f"{given.days} days of {given.rows:,} rows, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}")
    try:
        return _measured(settings, source, past)
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)


def _measured(settings: Settings, source: Source, past: Past) -> int:
    expected: Expected = {}
    made = cost_of(lambda: expected.update(land_past(settings, source, past)))
    rows = [made.row("make and land all", past.rows * past.days)]
    job, versions = "seal:bench", dict[date, DayVersion]()
    with running_batch(settings, job) as spark, DayTable(settings, source) as days:
        sealer, ledger = Sealer(spark, settings, source, days, Passing()), read_ledger(days.places)
        for number, day in enumerate(past.dates):
            cost = cost_of(lambda day=day: versions.update({day: sealer.seal(day, ledger).version}))  # type: ignore[misc]  # mypy: no lambda with a default
            rows.append(cost.row(f"seal{' (Spark is cold)' if not number else ''}", past.rows))
        cost = cost_of(lambda: sealer.seal_all(past.dates, ledger))
        rows.append(cost.row("seal all days again, together", past.rows * past.days))
        found: Expected = {}
        cost = cost_of(lambda: found.update(_found(spark, days.places, source, versions)))
        rows.append(cost.row("failed_logins over all days", past.rows * past.days))
    for day in past.dates[-1:]:
        cost = cost_of(lambda day=day: _duckdb(settings, source, day, sort=True))  # type: ignore[misc]  # mypy: no lambda with a default
        rows.append(cost.row("DuckDB: sort and write", past.rows))
        cost = cost_of(lambda day=day: _duckdb(settings, source, day, sort=False))  # type: ignore[misc]  # mypy: no lambda with a default
        rows.append(cost.row("DuckDB: the same aggregate, as landed", past.rows))
    size = sum(version.bytes for version in versions.values()) / past.rows / past.days
    print(table(rows))
    print(f"\n{size:.1f} bytes a row sealed; {len(expected)} findings planted; load {os.getloadavg()[0]:.2f}")
    if found != expected:
        print(f"NOT TRUE: {len(found.items() ^ expected.items())} findings differ")
    return int(found != expected)


def _found(spark: SparkSession, places: Places, source: Source, versions: dict[date, DayVersion]) -> Expected:
    """What failed_logins counts."""
    events = sealed_events(spark, places, source, versions).where("action = 'login failed'")
    counts = events.groupBy(F.window("event_time", "10 seconds"), "user_id").count().where("count > 50")
    return {(row["user_id"], row["window"]["start"].astimezone(UTC)): row["count"] for row in counts.collect()}


def _duckdb(settings: Settings, source: Source, day: date, *, sort: bool) -> None:
    places = Places.of(settings, source.name)
    files = [str(places.root / file.path) for file in read_ledger(places).files(day)]
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.execute(f"SET temp_directory = '{settings.state}'")
        if sort:
            target = settings.state / "duckdb.parquet"
            ordered = f"SELECT * FROM read_parquet({files}) ORDER BY user_id, event_time"
            connection.execute(
                f"COPY ({ordered}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3)"
            )
            return
        window = "time_bucket(INTERVAL 10 seconds, event_time)"
        failed = f"SELECT user_id, {window} w, count(*) n FROM read_parquet({files}) WHERE action = 'login failed'"
        connection.execute(f"{failed} GROUP BY ALL HAVING n > 50").fetchall()


def cost_of(work: Callable[[], object]) -> Cost:
    """What `work` costs."""
    began, used = time.monotonic(), _cpu()
    work()
    return Cost(time.monotonic() - began, max(_cpu() - used, 0.01))


def _cpu() -> float:
    me = psutil.Process()
    times = [one.cpu_times() for one in [me, *me.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    sys.exit(main())
