"""The profile of a day, beside DuckDB and plain Python on the same rows; and the gate that judges by it."""

import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.rig.samples.visits import DAY, VISITS, expect, write
from tocsin.declare.settings import Settings
from tocsin.quality.data_drift import weekdays_before
from tocsin.quality.day_facts import DayFacts, Hole, PartitionFacts
from tocsin.quality.day_profile import HOURS, Profile, figure_types
from tocsin.quality.spark.day_gate import DayGate, profile_of, samples_of
from tocsin.quality.suites.suite_catalog import read_suites
from tocsin.quality.verdict import Severity, Verdict
from tocsin.quality.verdict_files import Records

START = datetime(2026, 11, 21, tzinfo=UTC)
IDENTITY = "raw_topic string, raw_partition int, raw_offset bigint, event_time timestamp, ingested_at timestamp"
SCHEMA = f"{IDENTITY}, " + ", ".join(f"{name} {kind}" for name, kind in VISITS.columns.items())


def row(number: int, **columns: Any) -> tuple[Any, ...]:
    at = columns.pop("at", START + timedelta(seconds=number))
    own = {"visitor": f"v{number}", "at": at} | dict.fromkeys(list(VISITS.columns)[2:]) | columns
    return ("raw.visits", number % 2, number, at, at, *own.values())


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def facts(rows: int, **fields: Any) -> DayFacts:
    own: dict[str, Any] = {"source": "visits", "day": DAY, "version": "v1", "rows": rows, "landed": rows}
    own |= {"duplicates": 0, "imported": 0, "late": 0, "partitions": {0: PartitionFacts(rows=rows)}}
    own |= dict.fromkeys(("newest_event", "newest_append", "read_through", "previous_rows"))
    return DayFacts(**(own | fields))


def profiled(spark: SparkSession, rows: Sequence[tuple[Any, ...]], project: Path) -> Profile:
    return profile_of(frame(spark, rows), VISITS, read_suites(project, VISITS).rows, facts(len(rows)))


def test_every_figure_is_what_duckdb_counts(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(5)
    rows = [
        row(
            number,
            at=START + timedelta(microseconds=dice.randrange(86_400_000_000)),
            visitor=f"v{dice.randrange(700)}",
            amount=dice.choice([None, round(dice.expovariate(0.1), 2)]),
            tries=dice.choice([None, dice.randrange(-5, 60)]),
            big=dice.randrange(2**40),
            ok=dice.choice([None, True, False, False]),
            page=dice.choice([None, "", "/", "/é" * dice.randrange(9), "🙂"]),
        )
        for number in range(5_000)
    ]
    write(tmp_path, "rows", expect("column_values_to_be_between", "warning", "tries", column="tries", max_value=40))
    mine = profiled(spark, rows, tmp_path)
    table = duckdb.connect()
    table.execute("SET TimeZone = 'UTC'")
    kinds = {"timestamp": "timestamptz", "string": "varchar"}
    columns = [part.split(" ") for part in SCHEMA.split(", ")]
    declared = ", ".join(f'"{name}" {kinds.get(kind, kind)}' for name, kind in columns)
    table.execute(f"CREATE TABLE day ({declared})")
    table.executemany(f"INSERT INTO day VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def counted(sql: str) -> Any:
        found = table.execute(f"SELECT {sql} FROM day").fetchone()
        assert found is not None
        return found[0]

    exact = {
        "rows": "count(*)",
        "first_event": "min(event_time)",
        "last_event": "max(event_time)",
        "hours": "count(DISTINCT hour(event_time))",
        **{name: f"count_if(hour(event_time) = {hour})" for hour, name in enumerate(HOURS)},
        **{f"{name}.nulls": f'count_if("{name}" IS NULL)' for name in VISITS.columns},
        **{f"{name}.null_ratio": f'count_if("{name}" IS NULL) / count(*)' for name in VISITS.columns},
        **{f"{name}.mean": f"avg({name})" for name in ("amount", "tries", "big")},
        **{f"{name}.minimum": f"min({name})" for name in ("amount", "tries", "big")},
        **{f"{name}.maximum": f"max({name})" for name in ("amount", "tries", "big")},
        "page.longest": "max(strlen(page))",
        "ok.true_ratio": "count_if(ok) / count(ok)",
        "amount.infinite": "0",
        "tries.violations": "count_if(tries > 40)",
        "tries.violation_ratio": "count_if(tries > 40) / count(tries)",
    }
    assert {name: mine.figures[name] for name in exact} == {
        name: pytest.approx(value) if isinstance(value := counted(sql), float) else value for name, sql in exact.items()
    }
    for name in ("visitor", "tries", "big", "page"):
        assert mine.number(f"{name}.distinct") == pytest.approx(counted(f"count(DISTINCT {name})"), rel=0.06)
    for name in ("amount", "tries", "big"):
        for share, metric in ((0.05, "p05"), (0.5, "median"), (0.95, "p95")):
            near = [counted(f"quantile_disc({name}, {share + off})") for off in (-0.002, 0.002)]
            assert near[0] <= (mine.number(f"{name}.{metric}") or 0) <= near[1]
    assert set(mine.figures) == set(figure_types(VISITS, read_suites(tmp_path, VISITS).rows))


def test_an_empty_day_has_a_profile(spark: SparkSession, tmp_path: Path) -> None:
    mine = profiled(spark, [], tmp_path)
    assert (mine.figures["rows"], mine.figures["hours"], mine.by_hour) == (0, 0, (0,) * 24)
    empty = (
        "last_event",
        "quiet_minutes",
        "page.null_ratio",
        "amount.mean",
        "amount.median",
        "page.longest",
        "duplicate_ratio",
    )
    assert [mine.figures[name] for name in empty] == [None] * len(empty)


def test_how_long_before_midnight_a_day_fell_quiet(spark: SparkSession, tmp_path: Path) -> None:
    times = [timedelta(hours=9), timedelta(hours=22, minutes=29, seconds=30), timedelta(hours=22)]
    rows = [row(number, at=START + time) for number, time in enumerate(times)]
    expected = {"quiet_minutes": 90.5, "hours": 2, "completeness": 2 / 24}
    mine = profiled(spark, rows, tmp_path)
    assert {name: mine.figures[name] for name in expected} == expected
    write(
        tmp_path, "day", expect("column_values_to_be_between", "warning", "fresh", column="quiet_minutes", max_value=90)
    )
    gate = DayGate(Settings(project=tmp_path, state=tmp_path / "state"), VISITS)
    assert _failed(gate.judge(DAY, frame(spark, rows), facts(len(rows)))) == {"fresh": "warning"}
    later = [*rows, row(3, at=START + timedelta(hours=22, minutes=30))]
    assert _failed(gate.judge(DAY, frame(spark, later), facts(len(later), version="v2"))) == {}


def test_a_column_of_nulls_and_numbers_that_are_none(spark: SparkSession, tmp_path: Path) -> None:
    amounts = [math.nan, math.inf, -math.inf, None, 1.0, 3.0]
    mine = profiled(spark, [row(number, amount=amount) for number, amount in enumerate(amounts)], tmp_path)
    assert (mine.figures["amount.nulls"], mine.figures["amount.infinite"]) == (2, 2)
    assert (mine.figures["amount.mean"], mine.figures["amount.maximum"]) == (fmean([1, 3]), 3.0)
    assert (mine.figures["page.null_ratio"], mine.figures["page.longest"], mine.figures["page.distinct"]) == (
        1.0,
        None,
        0,
    )
    assert json.loads(mine.model_dump_json()), "nothing in it that JSON cannot say"
    huge = profiled(spark, [row(0, amount=1.7e308), row(1, amount=1.7e308)], tmp_path)
    assert huge.figures["amount.mean"] is None, "their sum is more than a double holds"


def test_texts_of_any_kind(spark: SparkSession, tmp_path: Path) -> None:
    pages = ["x" * 1_000_000, "🙂" * 3, "\u202e\x00\n'\"\\", ""]
    mine = profiled(spark, [row(number, page=page) for number, page in enumerate(pages)], tmp_path)
    assert (mine.figures["page.longest"], mine.figures["page.distinct"]) == (1_000_000, 4)


def test_what_sealing_knows_becomes_figures(spark: SparkSession) -> None:
    hole = Hole(from_offset=5, to_offset=9, removed=True)
    partitions = {0: PartitionFacts(rows=3, holes=(hole,)), 1: PartitionFacts(rows=2, holes=(hole,))}
    known = facts(4, landed=5, duplicates=1, late=2, partitions=partitions, imported=1)
    mine = profile_of(frame(spark, [row(number) for number in range(4)]), VISITS, (), known)
    wanted = {
        "landed": 5,
        "duplicates": 1,
        "duplicate_ratio": 0.2,
        "late_ratio": 0.4,
        "missing_offsets": 8,
        "imported": 1,
    }
    assert {name: mine.figures[name] for name in wanted} == wanted


def test_ten_samples_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "rows", expect("column_values_to_be_null", column="page"))
    rule = read_suites(tmp_path, VISITS).rows[0]
    some = samples_of(frame(spark, [row(number, page="/" if number in (3, 4) else None) for number in range(9)]), rule)
    assert some == ("raw.visits/0/4", "raw.visits/1/3")
    assert len(samples_of(frame(spark, [row(number, page="/") for number in range(90)]), rule)) == 10


# --- the gate ---------------------------------------------------------------------------------------------------------


def day_of(spark: SparkSession, day: Any = DAY, rows: int = 240, hours: int = 24, page: str = "/") -> DataFrame:
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    gap = timedelta(hours=hours) / max(rows, 1)
    return frame(spark, [row(number, at=begin + gap * number, page=page) for number in range(rows)])


def gate_of(tmp_path: Path) -> DayGate:
    write(
        tmp_path, "rows", expect("column_values_to_be_in_set", "warning", "known_page", column="page", value_set=["/"])
    )
    between = "column_values_to_be_between"
    write(
        tmp_path,
        "day",
        expect(between, name="some", column="rows", min_value=1),
        expect(between, name="not_ten_times", column="rows", max_value={"$PARAMETER": "usual_rows * 10"}),
        expect(between, "warning", "every_hour", column="completeness", min_value=1),
        expect(between, name="nothing_lost", column="missing_offsets", max_value=0),
    )
    return DayGate(Settings(project=tmp_path, state=tmp_path / "state"), VISITS)


def test_the_gate_judges_days_beside_those_before(spark: SparkSession, tmp_path: Path) -> None:
    gate = gate_of(tmp_path)

    def judged(day: Any = DAY, lost: int = 0, **shape: Any) -> Verdict:
        rows = shape.get("rows", 240)
        holes = (Hole(from_offset=0, to_offset=lost, removed=True),) if lost else ()
        known = facts(rows, day=day, version=f"v{len(seen)}", partitions={0: PartitionFacts(rows=rows, holes=holes)})
        seen.append(day)
        return gate.judge(day, day_of(spark, day, **shape), known)

    seen: list[Any] = []
    before = weekdays_before(DAY)[:4]
    assert [judged(day).severity for day in reversed(before)] == [Severity.PASS] * 4
    assert judged().severity is Severity.PASS
    assert _failed(judged(rows=2_500)) == {
        "not_ten_times": "critical",
        "usual rows": "warning",
    }
    assert _failed(judged(rows=100)).items() >= {"half of the usual rows": "critical"}.items()
    assert _failed(judged(rows=0)).items() >= {"some": "critical", "half of the usual rows": "critical"}.items()
    assert _failed(judged(hours=12)) == {"every_hour": "warning"}
    assert _failed(judged(lost=3)) == {"nothing_lost": "critical"}
    strange = judged(page="<script>")
    assert _failed(strange) == {"known_page": "warning", "usual known_page.violation_ratio": "warning"}
    assert len(next(check for check in strange.checks if check.name == "known_page").samples) == 10
    records = Records(tmp_path / "state")
    assert records.days("visits") == [DAY, *before]
    last = records.latest("visits", DAY)
    assert last is not None
    assert last.verdict == strange
    assert strange.report is not None
    page = (tmp_path / "state" / strange.report).read_text()
    assert "known_page" in page
    assert "<script" not in page


def _failed(verdict: Verdict) -> dict[str, str]:
    return {check.name: str(check.severity) for check in verdict.failed}
