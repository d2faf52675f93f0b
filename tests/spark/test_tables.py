"""Tables as a function joins them: one row at most, by the time of the event, from the snapshot in force."""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.rig.samples.segments import segments
from tests.spark.conftest import Feed, moment, told
from tests.spark.plans import SOURCE, plan_of
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.setup.paths import here
from tocsin.spark.events import parse_events
from tocsin.spark.query.stream_tables import StreamTables, check_settle
from tocsin.spark.tables.published_table import TableFolder
from tocsin.spark.tables.spark.joined_tables import FollowedTables, JoinedTables, no_rows
from tocsin.spark.tables.version_store import RowVersion

WHERE = Path("detectors/d.py")
FILE = """title = "Segments"
owner = "crm@example.com"
topic = "segments"
key = "customer_id"

[schema]
customer_id = "string"
segment = "string"

[optional]
usual = "double"
"""
TYPES = "customer_id string, segment string, usual double, valid_from timestamp, valid_to timestamp"


def at(text: str) -> datetime:
    return moment(f"12:00:{text}")


@pytest.fixture
def tables(spark: SparkSession) -> JoinedTables:
    rows = [
        ("a", "student", 1.0, at("10"), at("20")), ("a", "family", 2.0, at("20"), None),
        ("b", "senior", None, at("00"), at("30")),
    ]  # fmt: skip
    return JoinedTables(WHERE, {"segments": (segments(), spark.createDataFrame(rows, TYPES))})


def events(spark: SparkSession, *rows: tuple[str | None, str], name: str = "customer_id") -> DataFrame:
    return spark.createDataFrame([(one, at(text)) for one, text in rows], f"{name} string, event_time timestamp")


def test_an_event_finds_the_row_of_its_time_and_no_other(spark: SparkSession, tables: JoinedTables) -> None:
    given = events(spark, ("a", "09.999"), ("a", "10"), ("a", "19.999"), ("a", "20"), ("b", "05"), ("b", "30"),
                   ("z", "15"), (None, "15"))  # fmt: skip
    joined = tables.join(given, "segments")
    assert joined.columns == ["customer_id", "event_time", "segments_since", "segment", "usual"]
    times = [F.col(name).cast("string").alias(name) for name in ("event_time", "segments_since")]
    rows = joined.select("customer_id", *times, "segment", "usual").collect()
    found = {(row.customer_id, row.event_time): (row.segment, row.usual, row.segments_since) for row in rows}
    day = "2026-01-01 12:00:"
    assert found == {
        ("a", f"{day}09.999"): (None, None, None), ("a", f"{day}10"): ("student", 1.0, f"{day}10"),
        ("a", f"{day}19.999"): ("student", 1.0, f"{day}10"), ("a", f"{day}20"): ("family", 2.0, f"{day}20"),
        ("b", f"{day}05"): ("senior", None, f"{day}00"), ("b", f"{day}30"): (None, None, None),
        ("z", f"{day}15"): (None, None, None), (None, f"{day}15"): (None, None, None),
    }  # fmt: skip
    kept = tables.join(given, "segments", how="inner").collect()
    assert sorted((row.customer_id, row.segment) for row in kept) == [
        ("a", "family"), ("a", "student"), ("a", "student"), ("b", "senior"),
    ]  # fmt: skip


def test_the_key_may_have_another_name_in_the_events(spark: SparkSession, tables: JoinedTables) -> None:
    joined = tables.join(events(spark, ("a", "15"), name="who"), "segments", on={"customer_id": "who"})
    assert [(row.who, row.segment) for row in joined.collect()] == [("a", "student")]
    assert "customer_id" not in joined.columns


@pytest.mark.parametrize(
    ("join", "what"),
    [
        (lambda t, e: t.join(e, "segment"), "does not declare.*did you mean 'segments'"),
        (lambda t, e: t.join(e, "segments", how="right"), "how='right'"),
        (lambda t, e: t.join(e.withColumnRenamed("customer_id", "customer"), "segments"), "no column 'customer_id'"),
        (lambda t, e: t.join(e.withColumn("customer_id", F.lit(1)), "segments"), "is int, .* is string: cast it"),
        (lambda t, e: t.join(e.drop("event_time"), "segments"), "no column 'event_time'"),
        (lambda t, e: t.join(e.withColumn("usual", F.lit(1)), "segments"), "'usual' already; rename or drop"),
        (lambda t, e: t.join(e, "segments", on={"customer": "x"}), "'customer' in on= is no column of its key"),
        (lambda t, e: t.join(t.join(e, "segments"), "segments"), "'segments_since' already"),
    ],
)
def test_a_join_that_cannot_be_is_refused_in_words(
    spark: SparkSession, tables: JoinedTables, join: Callable[..., DataFrame], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        join(tables, events(spark, ("a", "15")))


def test_joining_a_table_keeps_real_time_mode(spark: SparkSession, tables: JoinedTables) -> None:
    def detect(given: DataFrame) -> DataFrame:
        joined = tables.join(given, "segments", on={"customer_id": "user_id"})
        return joined.groupBy("window", "user_id").agg(F.count("usual").alias("score"))

    plan = plan_of(spark, detect)
    assert (plan.mode, plan.exchanges) == ("real-time", 3)


@pytest.fixture
def installed(tmp_path: Path) -> Settings:
    (tmp_path / "tables").mkdir()
    return Settings(project=tmp_path, state=tmp_path / "it's state")


def version(customer: str, segment: str, since: datetime, until: datetime | None = None) -> RowVersion:
    micros = [None if one is None else int(one.timestamp() * 1e6) for one in (since, until)]
    assert micros[0] is not None
    return RowVersion([customer, segment, 1.0], micros[0], micros[1])


def test_each_batch_of_a_stream_reads_the_snapshot_in_force(
    spark: SparkSession, installed: Settings, feed: Feed
) -> None:
    spec = segments()
    folder = TableFolder(installed, spec)
    with pytest.raises(TransientError, match="table 'segments' has no rows yet; they come from job table:segments"):
        FollowedTables(spark, installed, [spec], WHERE)
    folder.publish([version("a", "student", at("00"))], datetime.now(UTC))
    tables = FollowedTables(spark, installed, [spec], WHERE)
    parsed = feed.records.select(F.from_json("value", "customer_id string, event_time timestamp").alias("e"))
    rows: list[str] = []

    def take(batch: DataFrame, _: int) -> None:
        rows.extend(f"{row.segment}" for row in batch.collect())

    query = tables.join(parsed.select("e.*"), "segments").writeStream.foreachBatch(take).start()

    def send() -> list[str]:
        rows.clear()
        feed.send([{"customer_id": "a", "event_time": at("30").isoformat()}])
        query.processAllAvailable()
        return list(rows)

    try:
        assert send() == ["student"]
        versions = [version("a", "student", at("00"), at("20")), version("a", "family", at("20"))]
        folder.publish(versions, datetime.now(UTC))
        assert send() == ["student"], "until it is told"
        assert tables.refresh() == ""
        assert send() == ["family"]
        folder.publish([], datetime.now(UTC) - timedelta(minutes=10))
        assert "table 'segments' is 600 s behind" in tables.refresh()
        assert send() == ["None"]
    finally:
        query.stop()


def test_what_is_planned_after_a_pause_joins_the_newest_rows(spark: SparkSession, installed: Settings) -> None:
    (installed.project / "tables" / "segments.toml").write_text(FILE)
    folder = TableFolder(installed, read_catalog(installed.project).table("segments"))
    folder.publish([version("a", "student", at("00"))], datetime.now(UTC))
    declared: Any = SimpleNamespace(path=WHERE, tables=("segments",))
    tables = StreamTables(installed, declared, [SOURCE], batch_seconds=5)
    assert tables.newest() is None
    run: Any = SimpleNamespace(spark=spark, is_stopping=False, retry=lambda: None)
    assert tables.await_rows(run)
    tables.refresh()
    folder.publish([version("a", "family", at("00"))], datetime.now(UTC))
    newest = tables.newest()
    assert newest is not None
    assert newest.join(events(spark, ("a", "15")), "segments").collect()[0].segment == "family"


def test_the_state_fits_whatever_snapshot_is_in_force(spark: SparkSession, installed: Settings) -> None:
    spec, folder = segments(), TableFolder(installed, segments())
    prints = set()
    for number in range(2):
        folder.publish([version("a", "s", at("00"))] * number, datetime.now(UTC))
        tables = FollowedTables(spark, installed, [spec], WHERE)

        def detect(given: DataFrame, tables: FollowedTables = tables) -> DataFrame:
            joined = tables.join(given, "segments", on={"customer_id": "user_id"})
            return joined.groupBy("window", "user_id").agg(F.count("usual").alias("score"))

        prints.add(plan_of(spark, detect).fingerprint)
    assert len(prints) == 1


def test_a_row_that_would_hold_before_it_is_read_is_refused(installed: Settings, tmp_path: Path) -> None:
    example = here().root / "examples" / "spending"
    catalog = read_catalog(example)
    spec, source = catalog.detector("high_spending"), catalog.source("purchases")
    settings = installed.model_copy(update={"project": example})
    check_settle(settings, spec, [source], batch_seconds=60)
    with pytest.raises(ConfigError, match=r"settle.*too short for high_spending\.py.*at least 167 seconds"):
        check_settle(settings, spec, [source], batch_seconds=120)


def test_the_shipped_detector_finds_what_a_recount_finds(spark: SparkSession) -> None:
    catalog = read_catalog(here().root / "examples" / "spending")
    assert not catalog.broken
    spec, source, table = catalog.detector("high_spending"), catalog.source("purchases"), catalog.table("segments")
    chance, expected = random.Random(3), defaultdict[tuple[str, datetime], float](float)
    usual = {"a": [(at("00"), 10.0)], "b": [(at("00"), 100.0), (at("30"), 1.0)], "c": [(at("00"), 0.0)]}
    written = []
    for number in range(400):
        customer, amount = chance.choice("abcz"), chance.choice([-5.0, 0.0, 1.0, 20.0])
        moment_ = at("00") + timedelta(microseconds=chance.randrange(60_000_000))
        known = [value for since, value in usual.get(customer, []) if since <= moment_]
        if known and known[-1] > 0 and amount > 0:
            expected[customer, at("00")] += amount / known[-1]
        text = moment_.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        place = {"raw_topic": "raw.x", "raw_partition": 0, "raw_offset": number}
        written.append(place | {"event_time": text, "ingested_at": text, "source": "x", "schema_version": 1,
                                "customer_id": customer, "timestamp": text, "amount": amount})  # fmt: skip
    records = spark.createDataFrame([(json.dumps(one).encode(),) for one in written], "value binary")
    read = EventReader(
        lambda *_: parse_events(records, source), tables=lambda one: versions_of(one, spec.path, table, usual)
    )
    hour = Range(start=moment("11:00:00"), end=moment("13:00:00"), run_id="r")
    found = told(find_in_range(spark, read, spec, [source], hour))
    over = {key: score for key, score in expected.items() if score > 10}
    assert len(over) == 2
    assert {(one.entity["customer_id"], one.window_start): one.score for one in found} == pytest.approx(over)


def versions_of(spark: SparkSession, path: Path, table: TableSpec, usual: dict[str, Any]) -> JoinedTables:
    rows = []
    for customer, versions in usual.items():
        ends = [since for since, _ in versions[1:]] + [None]
        rows += [(customer, "s", value, since, until) for (since, value), until in zip(versions, ends, strict=True)]
    kinds = "customer_id string, segment string, usual_spending double, valid_from timestamp, valid_to timestamp"
    return JoinedTables(path, {"segments": (table, spark.createDataFrame(rows, kinds))})


def test_a_plan_needs_no_rows(spark: SparkSession) -> None:
    catalog = read_catalog(here().root / "examples" / "spending")
    tables = no_rows(spark, catalog, ("segments",), WHERE)
    assert tables is not None
    assert tables.join(events(spark, ("a", "10")), "segments").collect()[0].segment is None
    assert no_rows(spark, catalog, (), WHERE) is None
