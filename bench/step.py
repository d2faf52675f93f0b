"""`python -m bench.step`: what `step` costs on the stream and on history, beside the same logic by hand in Spark.

The logic is that of `examples/travel`. By hand means `applyInPandas` over sorted groups on history, and
`transformWithState` on the stream, which takes events as they come: without the order, the duplicates, the limits of
time and size, and the forgetting that `step` has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from bench.figures import table
from examples.travel.detectors.impossible_travel import LastLogin, distance_km
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.detect.spark.step_query import detector_function
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.spark.events import parse_events, prepare_events
from tocsin.spark.session import clean_scratch, streaming_session

_JOB = "bench:step"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_KEPT = "time timestamp, latitude double, longitude double"
_FOUND = "user_id string, km double"


@dataclass(frozen=True)
class _Load:
    """So many events of so many users, in so many files: each is one micro-batch."""

    events: int
    users: int
    files: int = 10

    def write(self, folder: Path) -> None:
        chance = random.Random(1)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number in range(self.files):
            size = self.events // self.files
            lines = (self._record(number * size + one, chance) for one in range(size))
            path = folder / f"{number:03d}.json"
            path.write_text("\n".join(lines) + "\n")
            os.utime(path, (number, number))

    def _record(self, number: int, chance: random.Random) -> str:
        moment = f"{_BEGIN + timedelta(milliseconds=number * 10):%Y-%m-%dT%H:%M:%S.%fZ}"
        place = {"latitude": chance.uniform(-60, 60), "longitude": chance.uniform(-180, 180)}
        user = f"user{chance.randrange(self.users)}"
        identity = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": number, "source": "logins"}
        times = {"event_time": moment, "ingested_at": moment, "timestamp": moment}
        return json.dumps(identity | times | place | {"schema_version": 1, "user_id": user})


def _by_hand(logins: pd.DataFrame) -> pd.DataFrame:
    """Take one user at once."""
    found, last = [], LastLogin()
    columns = logins.sort_values(["event_time", "raw_offset"])[["user_id", "event_time", "latitude", "longitude"]]
    for user, *login_columns in columns.itertuples(index=False, name=None):
        login = LastLogin(*login_columns)
        if last.time is not None:
            found.append((user, distance_km(last, login)))
        last = login
    return pd.DataFrame(found, columns=["user_id", "km"])


class _ByHand(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", _KEPT)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        stored = self._last.get()
        last = LastLogin() if stored is None else LastLogin(*stored)
        for row in rows:
            login = LastLogin(row.event_time, row.latitude, row.longitude)
            if last.time is not None:
                yield Row(user_id=key[0], km=distance_km(last, login))
            last = login
        self._last.update((last.time, last.latitude, last.longitude))

    def close(self) -> None:
        pass


class _Ways:
    """Each way to go through the events in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        catalog = read_catalog(here().root / "examples" / "travel")
        self._spark, self._folder = spark, folder
        self._spec, self._source = catalog.detector("impossible_travel"), catalog.source("logins")

    def history(self) -> None:
        days = Range(start=_BEGIN, end=_BEGIN + timedelta(days=1), run_id="bench")
        read = EventReader(lambda spark, _: self._parsed(spark.read.text(str(self._folder))))
        _run(find_in_range(self._spark, read, self._spec, [self._source], days))

    def history_by_hand(self) -> None:
        _run(self._parsed(self._spark.read.text(str(self._folder))).groupBy("user_id").applyInPandas(_by_hand, _FOUND))

    def stream(self) -> None:
        prepared = prepare_events(self._stream(), self._spec, self._source.lateness)
        rows = detector_function(self._spec, self._source)(prepared, None)
        _follow(make_findings(rows, self._spec, Emission()), self._folder)

    def stream_by_hand(self) -> None:
        grouped = self._stream().groupBy("user_id")
        _follow(grouped.transformWithState(_ByHand(), _FOUND, "Append", "None"), self._folder)

    def _stream(self) -> DataFrame:
        reader = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        return self._parsed(reader.load(str(self._folder)))

    def _parsed(self, records: DataFrame) -> DataFrame:
        return parse_events(records.withColumn("value", F.col("value").cast("binary")), self._source)


def _run(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _follow(rows: DataFrame, folder: Path) -> None:
    checkpoint = folder.with_name("checkpoint")
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = rows.writeStream.format("noop").outputMode("append").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def _cpu_of(way: Callable[[], None]) -> tuple[float, float]:
    """Run `way`; returns the CPU-seconds of this process, its JVM and its Python workers, and those of the clock."""
    before, began = _cpu(), time.monotonic()
    way()
    return _cpu() - before, time.monotonic() - began


def _cpu() -> float:
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def main() -> int:
    """Measure each way twice, the second time warm, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=here().bench / "step")
    given = parser.parse_args()
    os.environ["JAVA_HOME"] = str(find_java().home)
    settings = Settings(state=given.folder / "state", spark=SparkSettings(heap_mb=1024, shuffle_partitions=2))
    clean_scratch(settings, _JOB)
    spark = streaming_session(settings, job=_JOB, slots=4)
    rows = []
    for users in (20, 2_000):
        load = _Load(given.events, users)
        load.write(given.folder / "events")
        ways = _Ways(spark, given.folder / "events")
        for way in (ways.history, ways.history_by_hand, ways.stream, ways.stream_by_hand):
            way()
            cpu, seconds = _cpu_of(way)
            name = way.__name__.replace("_", " ")
            rows.append({"way": name, "users": users, "events per CPU-s": round(load.events / cpu),
                         "events per s": round(load.events / seconds)})  # fmt: skip
            print(rows[-1], flush=True)
    spark.stop()
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
