"""Backfills of failed_logins over days of a chosen size, beside the same query written by hand in Spark and in DuckDB.

Each way is a process of its own, from its start to its end; "the query" leaves the start of Spark out. A way of Tocsin
judges, reports and publishes each day, which the others do not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.figures import Goal, table
from bench.history import Cost, cost_of
from bench.past import Expected, Past, day_before, expected
from bench.same_query import BUCKETS, DUCKDB, FAILED, FILES, KEYED
from bench.sealed import seal_past
from bench.spent import Spent, spent_by
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment

DETECTOR, SOURCE = "failed_logins", "logins"
BACKFILL, AGAIN = "tocsin backfill", "tocsin backfill, nothing due"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GOAL_ROWS, _GOAL_MINUTES = 1.5e9, 15
_WAYS = [(FAILED, BUCKETS), (FAILED, FILES), (FAILED, DUCKDB), (KEYED, BUCKETS), (KEYED, FILES), (KEYED, DUCKDB)]


@dataclass(frozen=True)
class Way:
    """One way over all days.

    Attributes:
        spent: by its process.
        query_cpu: CPU-seconds of the query alone; 0 where there was none.
        wrong: findings missing, wrong or too many; for `keyed`, 1 when its figures are not those that were made.
    """

    spent: Spent
    query_cpu: float
    wrong: int


@dataclass(frozen=True)
class Measured:
    """What was measured at one size.

    Attributes:
        past: what was made.
        size: bytes of its sealed files.
        making: what making them cost.
        ways: by name.
        anew: findings that the second backfill published.
    """

    past: Past
    size: int
    making: Cost
    ways: dict[str, Way]
    anew: int


def name_of(question: str, way: str) -> str:
    """What a way by hand is called in the table."""
    how = {BUCKETS: "Spark by hand, on buckets", FILES: "Spark by hand, on files", DUCKDB: "DuckDB"}[way]
    return f"{question}: {how}"


def measure(folder: Path, sizes: Sequence[int], days: int) -> list[Measured]:
    """Make and measure each of `sizes`, the rows of all `days` together; `folder` is emptied before and behind."""
    found = []
    for rows in sizes:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            found.append(_Measurement(folder, Past(day_before(datetime.now(UTC), days), days, rows // days)).run())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def backfilled(folder: Path, past: Past) -> Spent:
    """Make `past`, and backfill it; `folder` is emptied before and behind. RuntimeError if a finding is wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        way = _Measurement(folder, past).backfill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if way.wrong:
        raise RuntimeError(f"{way.wrong} findings of {past.days} days are wrong")
    return way.spent


class _Measurement:
    """One size."""

    def __init__(self, folder: Path, past: Past) -> None:
        self._folder, self._past = folder, past
        self._settings = Settings(project=here().root, state=folder / "state")
        self._source = read_catalog(self._settings.project).source(SOURCE)
        self._environment = job_environment(self._settings, find_java().home)
        self._backfills = Backfills(self._settings, DETECTOR)

    def backfill(self) -> Way:
        """Backfill alone."""
        seal_past(self._settings, self._source, self._past)
        return self._backfill(expected(self._past))

    def run(self) -> Measured:
        sizes: list[int] = []
        settings, source, past = self._settings, self._source, self._past
        making = cost_of(lambda: sizes.extend(version.bytes for version in seal_past(settings, source, past)))
        truth, ways = expected(past), dict[str, Way]()
        ways[BACKFILL] = self._backfill(truth)
        runs = self._runs()
        ways[AGAIN] = self._backfill(truth)
        anew = sum(count for run, count in self._runs().items() if run not in runs)
        ways[AGAIN] = Way(ways[AGAIN].spent, 0.0, ways[AGAIN].wrong)
        for question, way in _WAYS:
            ways[name_of(question, way)] = self._by_hand(question, way, truth)
        return Measured(past, sum(sizes), making, ways, anew)

    def _backfill(self, truth: Expected) -> Way:
        spent = self._spent([here().root / "spark_jobs" / "backfill.py", DETECTOR, "--run-id", "bench"], "backfill")
        query_cpu = sum(published.cpu_seconds for published in self._backfills.read().published.values())
        return Way(spent, query_cpu, count_wrong(self._backfills, truth))

    def _runs(self) -> dict[str, int]:
        return {f"{day} {one.run}": one.findings for day, one in self._backfills.read().published.items()}

    def _by_hand(self, question: str, way: str, truth: Expected) -> Way:
        file = self._folder / f"{question}-{way}.json"
        spent = self._spent(["-m", "bench.same_query", question, way, file], f"{question}-{way}")
        said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if question == KEYED:
            wrong = int(said["answer"][0][1] != self._past.rows * self._past.days)
        else:
            found = {(user, _EPOCH + timedelta(microseconds=start)): count for user, start, count in said["answer"]}
            wrong = len(found.items() ^ truth.items())
        return Way(spent, said["cpu"], wrong)

    def _spent(self, arguments: list[str | Path], what: str) -> Spent:
        log = self._folder / f"{what}.log"
        spent = spent_by([sys.executable, *arguments], log, self._environment, here().root)
        if spent.code not in (0, 10):  # the latter where a verdict was a warning
            raise RuntimeError(f"ended with {spent.code}; {log} ends:\n{log.read_text(errors='replace')[-3000:]}")
        print(f"{self._past.rows * self._past.days:,} rows, {what}: {spent}, load {os.getloadavg()[0]:.2f}", flush=True)
        return spent


def count_wrong(backfills: Backfills, truth: Expected) -> int:
    """Count the published findings that are missing, wrong or too many."""
    found = Expected()
    for day, published in backfills.read().published.items():
        for one in backfills.findings(day, published):
            assert one.window_start is not None, "its windows have a start"
            found[one.entity["user_id"], one.window_start] = int(one.score)
    return len(found.items() ^ truth.items())


def report(found: Sequence[Measured]) -> tuple[str, list[Goal]]:
    """The tables, and the goals."""
    text = "\n\n".join(_table_of(one) for one in found)
    last = max(found, key=_rows)
    ours, by_hand = last.ways[BACKFILL], last.ways[name_of(FAILED, BUCKETS)]
    keyed, floor = last.ways[name_of(KEYED, BUCKETS)], last.ways[name_of(KEYED, DUCKDB)]
    minutes = _expected_seconds(found) / 60
    peak = max(one.ways[BACKFILL].spent.rss for one in found) / 1e9
    wrong = sum(way.wrong for one in found for way in one.ways.values())
    goals = [
        Goal("CPU of the backfill beside the query by hand", ours.query_cpu / by_hand.query_cpu, 1.1, " x"),
        Goal("the same, whole processes", ours.spent.cpu / by_hand.spent.cpu, 1.1, " x"),
        Goal("CPU of a keyed aggregate beside DuckDB", keyed.query_cpu / floor.query_cpu, 2, " x"),
        Goal("failed_logins over 1.5 billion rows, extrapolated", minutes, _GOAL_MINUTES, " min"),
        Goal("memory of a backfill at most", peak, 4, " GB"),
        Goal("findings of a second backfill", sum(one.anew for one in found), 0),
        Goal("findings wrong", wrong, 0),
    ]
    growth = _growth(found)
    return text, goals if growth is None else [*goals, Goal("time per row, largest beside smallest", growth, 1, " x")]


def _table_of(one: Measured) -> str:
    rows = _rows(one)
    lines = [
        {
            "work": name,
            "seconds": way.spent.seconds,
            "CPU s": way.spent.cpu,
            "of the query": way.query_cpu,
            "M rows per CPU s of it": f"{rows / way.query_cpu / 1e6:.2f}" if way.query_cpu else "",
            "its CPU beside DuckDB": _beside(one, name, way),
            "RSS MB": round(way.spent.rss / 1e6),
            "wrong": way.wrong,
        }
        for name, way in one.ways.items()
    ]
    about = f"{rows:,} rows in {one.past.days} days, {one.size / rows:.1f} bytes each; made in {one.making.wall:.0f} s"
    return f"### {about}\n\n{table(lines)}"


def _beside(one: Measured, name: str, way: Way) -> str:
    floor = one.ways[name_of(KEYED if name.startswith(KEYED) else FAILED, DUCKDB)]
    return f"{way.query_cpu / floor.query_cpu:.1f}" if way.query_cpu else ""


def _expected_seconds(found: Sequence[Measured]) -> float:
    """How long `_GOAL_ROWS` rows would take: on a line through the two largest sizes, or in proportion to the one."""
    points = sorted((_rows(one), one.ways[BACKFILL].spent.seconds) for one in found)[-2:]
    (low, before), (high, last) = (0, 0.0) if len(points) == 1 else points[0], points[-1]
    return last + (_GOAL_ROWS - high) * (last - before) / (high - low)


def _growth(found: Sequence[Measured]) -> float | None:
    """Seconds per row at the largest size beside those at the smallest; None for a single size."""
    ordered = sorted(found, key=_rows)
    if len(ordered) == 1:
        return None
    first, last = (one.ways[BACKFILL].spent.seconds / _rows(one) for one in (ordered[0], ordered[-1]))
    return last / first


def _rows(one: Measured) -> int:
    return one.past.rows * one.past.days
