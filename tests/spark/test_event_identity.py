"""Detectors of single events that select what they need: a finding is about its event all the same."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import event, moment, told
from tests.spark.plans import SOURCE, SPEC
from tocsin.declare.model.detector import Levels
from tocsin.declare.model.errors import ConfigError
from tocsin.detect.spark.plan import read_plan
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.detect.spark.step_query import detector_function
from tocsin.spark.events import no_records, parse_events, prepare_events
from tocsin.spark.query.work import REAL_TIME

HEAD = "from pyspark.sql import functions as F\ndef detect(events):\n    return "
SHAPES = {
    "entity and score alone": 'events.select("user_id", F.lit(1).alias("score"))',
    "filters between": 'events.where("action = \'x\'").select("user_id", F.lit(2).alias("s"))'
    '.where("s > 1").select("user_id", F.col("s").alias("score"))',
    "columns dropped": 'events.drop("raw_topic", "raw_offset", "event_time").withColumn("score", F.lit(1))',
    "rows exploded": 'events.select("user_id", F.explode(F.array(F.lit(1))).alias("score"))',
    "joined to rows": 'events.select("user_id").join(F.broadcast(events.sparkSession.createDataFrame([("ann", 3)], '
    '"user_id string, score int")), "user_id")',
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_finding_has_the_identity_and_time_of_its_event(
    spark: SparkSession, tmp_path: Path, records: Callable[[list[dict[str, Any]]], DataFrame], shape: str
) -> None:
    (tmp_path / "d.py").write_text(HEAD + SHAPES[shape])
    spec = replace(SPEC, path=tmp_path / "d.py", window=None, levels=Levels(email=0))
    stream = prepare_events(parse_events(no_records(spark), SOURCE), spec, timedelta(0))
    plan = read_plan(detector_function(spec, SOURCE)(stream, None), spec)
    assert plan.mode == REAL_TIME
    sent = records([event("ann", f"12:00:0{number}", offset=number, action="x") for number in range(2)])
    read = EventReader(lambda *_: parse_events(sent, SOURCE))
    wanted = Range(start=moment("12:00:00"), end=moment("12:00:01"), run_id="r")
    (found,) = told(find_in_range(spark, read, spec, [SOURCE], wanted))
    assert (found.entity, found.discriminator) == ({"user_id": "ann"}, "raw.logins/0/0")
    assert found.event_time_max == moment("12:00:00")


def test_what_leaves_the_events_is_told_what_it_lacks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(
        f'{HEAD}events.mapInPandas(lambda rows: rows, "user_id string, amount double").withColumn("score", F.lit(1))'
    )
    spec = replace(SPEC, path=tmp_path / "d.py", window=None)
    stream = prepare_events(parse_events(no_records(spark), SOURCE), spec, timedelta(0))
    with pytest.raises(ConfigError, match="detect returns no column 'raw_topic'"):
        read_plan(detector_function(spec, SOURCE)(stream, None), spec)
