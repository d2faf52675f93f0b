"""The views in examples/, against a recount in plain Python."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import moment
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.source import Source
from tocsin.declare.model.view import ViewSpec
from tocsin.setup.paths import here
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import parse_events, prepare_events
from tocsin.spark.query.work import REAL_TIME
from tocsin.spark.query_plan import QueryPlan
from tocsin.views.spark.view_plan import make_rows, read_plan
from tocsin.views.stored_row import ViewRow

Events = list[dict[str, Any]]
Rows = dict[str, dict[str, Any]]


@dataclass
class Example:
    """A view of an example, and its source."""

    spec: ViewSpec
    source: Source

    @classmethod
    def read(cls, example: str, view: str) -> Example:
        catalog = read_catalog(here().root / "examples" / example)
        assert not catalog.broken
        spec = catalog.view(view)
        return cls(spec, catalog.source(spec.sources[0]))

    def rows(self, records: DataFrame) -> DataFrame:
        events = prepare_events(parse_events(records, self.source), self.spec.computed, self.source.lateness)
        return DeclaredFunction(self.spec.path, "view")(events)

    def plan(self, spark: SparkSession) -> QueryPlan:
        """What Spark says to its stream."""
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "a:1").option("subscribe", "e")
        return read_plan(self.rows(kafka.load()), self.spec, [self.source])

    def result(self, spark: SparkSession, events: Events) -> Rows:
        """The values by the identity of their rows."""
        twice = [*events, *events[::3]]
        records = spark.createDataFrame([(json.dumps(one).encode(),) for one in twice], "value binary")
        written = make_rows(self.rows(records), self.spec, "x").collect()
        read = [ViewRow.from_record(record.value.encode(), "t", 0, 0) for record in written]
        assert len(read) == len({row.identity for row in read})
        return {row.identity: row.values for row in read}


def event(number: int, at: datetime, **columns: Any) -> dict[str, Any]:
    text = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    place = {"raw_topic": "raw.x", "raw_partition": number % 2, "raw_offset": number // 2}
    return place | {"event_time": text, "ingested_at": text, "source": "x", "schema_version": 1} | columns


def moments(count: int, chance: random.Random) -> list[datetime]:
    return [moment("12:00:00") + timedelta(microseconds=chance.randrange(60_000_000)) for _ in range(count)]


def start_of(at: datetime) -> int:
    """The start of its window of 10 seconds, in microseconds since 1970."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since - since % timedelta(seconds=10)) // timedelta(microseconds=1)


def identity(**columns: Any) -> str:
    return json.dumps(columns, separators=(",", ":"), ensure_ascii=False)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(16)


def test_word_counts(spark: SparkSession, chance: random.Random) -> None:
    example = Example.read("words", "word_counts")
    words = [chance.choice(["ärger", "a", "日本", "the"]) for _ in range(400)]
    at = moments(400, chance)
    events = [event(n, at[n], word=word, writer="w") for n, word in enumerate(words)]
    truth = Counter(identity(word=word, window=start_of(at[n])) for n, word in enumerate(words))
    assert example.result(spark, events) == {key: {"count": count} for key, count in truth.items()}
    plan = example.plan(spark)
    assert (plan.mode, plan.output, plan.exchanges) == (REAL_TIME, "update", 2)


def test_inventory(spark: SparkSession, chance: random.Random) -> None:
    example = Example.read("inventory", "inventory")
    truth: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], datetime] = {}
    events = []
    for number, at in enumerate(moments(300, chance)):
        place = chance.choice(["berlin", "köln"]), chance.choice(["lamp", 'a "big" chair'])
        kind, quantity = chance.choice(["sale", "restock", "returned"]), chance.randrange(1, 9)
        truth[place] += {"sale": -quantity, "restock": quantity}.get(kind, 0)
        latest[place] = max(at, latest.get(place, at))
        events.append(event(number, at, store=place[0], item=place[1], kind=kind, quantity=quantity))
    assert example.result(spark, events) == {
        identity(item=item, store=store): {
            "stock": stock, "changed_at": latest[store, item].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        }
        for (store, item), stock in truth.items()
    }  # fmt: skip
    plan = example.plan(spark)
    assert (plan.mode, plan.output, plan.exchanges) == (REAL_TIME, "update", 2)


def test_route_metrics(spark: SparkSession, chance: random.Random) -> None:
    example = Example.read("routes", "route_metrics")
    hashes: dict[str, dict[str, str]] = defaultdict(dict)
    spent: dict[str, list[float]] = defaultdict(list)
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    events = []
    for number, at in enumerate(moments(300, chance)):
        path = chance.choice(["/", "/cart?a=1", "/ü"])
        digest = hashlib.sha256(path.encode()).hexdigest()
        timed_out = chance.random() < 0.1
        service, connect = (None, None) if timed_out else (float(chance.randrange(900)), float(chance.randrange(9)))
        status = None if timed_out else chance.choice([200, 404, 503])
        hashes["routes"][digest] = path
        for name, value in (("service", service), ("connect", connect)):
            if value is not None:
                spent[f"{digest}::{name}"].append(value)
        if status is not None:
            statuses[f"{digest}::statuses"][str(status)] += 1
        events.append(event(number, at, path=path, service=service, connect=connect, status=status))
    for name, values in spent.items():
        total, count = sum(values), len(values)
        hashes[name] = {"sum": str(total), "count": str(count), "average": str(total / count)}
    for name, counts in statuses.items():
        hashes[name] = {status: str(count) for status, count in counts.items()}
    assert example.result(spark, events) == {
        identity(field=field, hash=name): {"value": value} for name, of in hashes.items() for field, value in of.items()
    }
    plan = example.plan(spark)
    assert (plan.mode, plan.output, plan.exchanges) == (REAL_TIME, "update", 2)


def test_instance_totals(spark: SparkSession, chance: random.Random) -> None:
    example = Example.read("instances", "instance_totals")
    values, events = Counter[str](), []
    for number, at in enumerate(sorted(moments(300, chance))):
        instance = chance.choice(["web.1", "web.2", "web.3"])
        values[instance] = 0 if number == 150 else values[instance] + chance.randrange(5)
        events.append(event(number, at, metric="requests", instance=instance, value=values[instance]))
    written = example.result(spark, events)
    period = moment("12:00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    assert written == {
        identity(instance=name, metric="requests", window=period // timedelta(microseconds=1)): {
            "total": value, "instances": 1
        }
        for name, value in values.items()
    }  # fmt: skip
    plan = example.plan(spark)
    assert (plan.mode, plan.output, plan.exchanges) == (REAL_TIME, "update", 2)
