"""The days that measurements are taken on: written at once, they are what sealing makes of the same events."""

import re
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.past import Past, land_past
from bench.sealed import buckets_of, seal_past
from tests.spark.sealing import DAY, History
from tocsin.history.care import verify
from tocsin.history.day_versions import DayVersion
from tocsin.history.places import Places
from tocsin.history.spark.sealed_days import sealed_events

PAST = Past(DAY, 1, 3_000, users=700, bursts=5)
KEYS = ["", "a", "user-1", "user-499999", "burst-2026-11-19-3", "grüße", "人", "\x7f\x80", "x" * 39]


def test_a_day_written_at_once_is_the_day_that_sealing_makes(spark: SparkSession, tmp_path: Path) -> None:
    landed, written = History(tmp_path / "landed"), History(tmp_path / "written")
    expected = land_past(landed.settings, landed.source, PAST)
    sealed = landed.seal(spark).version
    [version] = seal_past(written.settings, written.source, PAST)
    assert _rows(written.places, DAY, version) == _rows(landed.places, DAY, sealed)
    assert _types(written.places, DAY, version) == _types(landed.places, DAY, sealed)
    assert (version.key, version.buckets, version.columns) == (sealed.key, sealed.buckets, sealed.columns)
    assert verify(written.settings, written.source, checksums=True) == []
    events = sealed_events(spark, written.places, written.source, {DAY: version}).where("action = 'login failed'")
    counts = events.groupBy(F.window("event_time", "10 seconds"), "user_id").count()
    plan = counts._jdf.queryExecution().executedPlan().toString()
    assert "Bucketed: true" in plan
    assert "Exchange" not in plan
    assert sorted(row["count"] for row in counts.where("count > 50").collect()) == sorted(expected.values())


def test_a_key_lies_in_the_bucket_that_spark_gives_it(spark: SparkSession) -> None:
    keys = spark.createDataFrame([(key,) for key in KEYS], "key string")
    by_spark = {row[0]: row[1] for row in keys.select("key", F.expr("pmod(hash(key), 32)")).collect()}
    assert dict(zip(KEYS, buckets_of(KEYS, 32).tolist(), strict=True)) == by_spark


def _rows(places: Places, day: date, version: DayVersion) -> dict[int, list[dict[str, Any]]]:
    """The rows of each bucket, as they stand."""
    return {_bucket(path): pq.read_table(path, partitioning=None).to_pylist() for path in _files(places, day, version)}


def _types(places: Places, day: date, version: DayVersion) -> set[str]:
    """How the files describe their columns, and how they are packed."""
    found = set()
    for path in _files(places, day, version):
        metadata = pq.read_metadata(path)
        packed = {metadata.row_group(0).column(number).compression for number in range(metadata.num_columns)}
        columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        found.add(f"{[(one.name, one.physical_type, str(one.logical_type)) for one in columns]} {packed}")
    return found


def _files(places: Places, day: date, version: DayVersion) -> list[Path]:
    return [Path(str(places.version(day, version.version) / file.name)) for file in version.files]


def _bucket(path: Path) -> int:
    found = re.search(r"_(\d+)\.c000", path.name)
    assert found is not None
    return int(found[1])
