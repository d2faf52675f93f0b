"""One Spark session for all tests of this folder, made as jobs make theirs."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.raw_records import Read, reading
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.history import sealing, table_refresh
from tocsin.history.backfill import trial
from tocsin.history.backfill.parity import today_parity
from tocsin.history.backfill.spark import backfill_run
from tocsin.history.spark import import_days, import_files
from tocsin.setup.java import find_java
from tocsin.spark import batch_session
from tocsin.spark.session import clean_scratch, streaming_session
from tocsin.views.spark import view_rebuild

JOB = "detector:tests"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    before = dict(os.environ)
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Hundreds of tests bring more queries than the 100 whose code Spark keeps, and many bring the same.
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--conf spark.sql.codegen.cache.maxEntries=2000 pyspark-shell"
    # Twice the heap of a job: what hundreds of tests leave in one JVM once filled it, and Spark ends then.
    settings = Settings(state=tmp_path_factory.mktemp("state"), spark=SparkSettings(heap_mb=1024))
    clean_scratch(settings, JOB)
    session = streaming_session(settings, job=JOB, slots=2)  # each row of tests costs a task for every slot
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def quick_batches(spark: SparkSession) -> Iterator[None]:
    """Streams take no further batch only because the watermark moves, as where people run cases."""
    key = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(key, "false")
    yield
    spark.conf.unset(key)


@contextmanager
def sharing(spark: SparkSession) -> Iterator[list[str]]:
    """Within the block, each batch that would start a session gets this one; yields the job of each start."""
    starts: list[str] = []

    @contextmanager
    def running(settings: Settings, job: str) -> Iterator[SparkSession]:
        clean_scratch(settings, job)
        starts.append(job)
        yield spark

    with pytest.MonkeyPatch.context() as patch:
        for module in (
            backfill_run,
            batch_session,
            import_days,
            import_files,
            sealing,
            table_refresh,
            today_parity,
            trial,
            view_rebuild,
        ):
            patch.setattr(module, "running_batch", running)
        patch.setattr(sealing, "land_new", lambda *_: None)  # there is no Kafka
        yield starts


@pytest.fixture
def starts(spark: SparkSession) -> Iterator[list[str]]:
    """A job for each batch that would have started a session; all of them share that of the tests."""
    with sharing(spark) as jobs:
        yield jobs


def moment(text: str) -> datetime:
    """`12:00:05.5` on the first day of 2026, UTC."""
    return datetime.fromisoformat(f"2026-01-01T{text}").replace(tzinfo=UTC)


def event(user: str | None, at: str, **columns: Any) -> dict[str, Any]:
    """A failed login of `user` at the time `at` (see `moment`); `offset`, `partition` and any column may be given."""
    place = {"raw_topic": "raw.logins", "raw_partition": columns.pop("partition", 0)}
    text = moment(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    declared = {"user_id": user, "timestamp": text, "ip_address": "192.0.2.1", "action": "login failed"}
    envelope = {"event_time": text, "ingested_at": text, "source": "logins", "schema_version": 1}
    return place | {"raw_offset": columns.pop("offset", id(object()))} | envelope | declared | columns


def tick(at: str) -> dict[str, Any]:
    return {"tick": True, "event_time": moment(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def burst(user: str | None, count: int, at: str, *, first: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """`count` failed logins of `user` at one time, with offsets from `first` on."""
    return [event(user, at, offset=first + number, **columns) for number in range(count)]


@pytest.fixture
def records(spark: SparkSession) -> Callable[[list[dict[str, Any]]], DataFrame]:
    """Makes a static DataFrame of records of an events topic."""

    def make(events: list[dict[str, Any]]) -> DataFrame:
        rows = [(json.dumps(one).encode(),) for one in events]
        return spark.createDataFrame(rows, "value binary")

    return make


def told(rows: DataFrame) -> list[Finding]:
    read = [(row.key, Finding.from_record(row.value.encode(), "findings", 0, 0)) for row in rows.collect()]
    assert all(key == finding.finding_id for key, finding in read)
    return sorted(
        (finding for _, finding in read), key=lambda f: (f.window_start or moment("00:00:00"), sorted(f.entity.items()))
    )


class Feed:
    """An events topic as a folder: each call of `send` is one micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder, self._files = folder, 0
        folder.mkdir()
        reader = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        self.records = reader.schema("value string").load(str(folder))

    def send(self, events: list[dict[str, Any]]) -> None:
        draft = self.folder / f".{self._files:05d}"
        draft.write_text("".join(json.dumps(one) + "\n" for one in events))
        # Spark reads the oldest file first, and files of one moment in any order.
        os.utime(draft, (self._files, self._files))
        draft.replace(self.folder / f"{self._files:05d}.json")
        self._files += 1


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


@pytest.fixture
def read(spark: SparkSession) -> Read:
    return reading(spark)
