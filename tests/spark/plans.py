"""A small source, a detector of it, and the plan of a query."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.model.detector import DetectorSpec, Levels, Stage
from tocsin.declare.model.source import Source
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.spark.events import parse_events, prepare_events

SOURCE = Source(
    name="logins", title="t", owner="o@example.com", formats=("json",), key="user_id", event_time="timestamp",
    columns={"user_id": "string", "timestamp": "timestamp", "action": "string", "amount": "double", "tries": "int"},
)  # fmt: skip
SPEC = DetectorSpec(
    name="d", path=Path("detectors/d.py"), sources=("logins",), entity=("user_id",), window=timedelta(seconds=10),
    levels=Levels(email=50, urgent=100), owner="o@example.com", runbook="r", stage=Stage.LIVE, title="t", doc="t",
    version="v",
)  # fmt: skip
Detect = Callable[[DataFrame], DataFrame]


def plan_of(spark: SparkSession, detect: Detect, *, delay: int = 10, server: str = "a:1", **spec: Any) -> DetectorPlan:
    kafka = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", server).option("subscribe", "events.logins")
    )
    declared = replace(SPEC, **spec)
    return read_plan(
        detect(prepare_events(parse_events(kafka.load(), SOURCE), declared, timedelta(seconds=delay))), declared
    )
