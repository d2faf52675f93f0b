"""Several sources in one function: joined within a time bound or put together, and what is refused."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Feed, moment, tick
from tests.spark.plans import SOURCE, SPEC
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import Levels
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.source import Source
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.setup.paths import here
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import (
    SourceEvents,
    by_source,
    optimize,
    parse_events,
    planned_events,
    prepare_events,
    used_columns,
)
from tocsin.spark.query.drain import SLACK
from tocsin.spark.query.work import MICRO_BATCH

EPOCH, WINDOW, BOUND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(minutes=10), timedelta(minutes=10)
EXAMPLE = here().root / "examples" / "spending"
LOGINS, RESETS = SOURCE, SOURCE.model_copy(update={"name": "resets", "lateness": timedelta(minutes=1)})
TWO = replace(SPEC, sources=("logins", "resets"))
Detect = Callable[[Any], DataFrame]


def planned(spark: SparkSession, detect: Detect, **changes: Any) -> DetectorPlan:
    spec = replace(TWO, **changes)
    return read_plan(detect(planned_events(spark, [LOGINS, RESETS], spec, spec.path)), spec, [LOGINS, RESETS])


def resets(events: SourceEvents) -> DataFrame:
    return events["resets"].select(F.col("user_id").alias("who"), F.col("event_time").alias("reset_at"))


def joined(how: str, *bounds: str) -> Detect:
    def detect(events: SourceEvents) -> DataFrame:
        on = [F.col("user_id") == F.col("who"), *map(F.expr, bounds)]
        return count(events.with_window(events["logins"].join(resets(events), on, how)))

    return detect


def count(rows: DataFrame) -> DataFrame:
    return rows.groupBy("window", "user_id").agg(F.count("*").alias("score"))


def both(events: SourceEvents) -> DataFrame:
    logins, resets_ = (events[name].select("event_time", "user_id") for name in ("logins", "resets"))
    return count(events.with_window(logins.unionByName(resets_)))


AFTER, BEFORE = "reset_at >= event_time", "reset_at <= event_time + INTERVAL 10 MINUTES"


@pytest.mark.parametrize("how", ["inner", "left", "left_semi"])
def test_a_join_within_a_bound_takes_micro_batches_and_closed_windows(spark: SparkSession, how: str) -> None:
    plan = planned(spark, joined(how, AFTER, BEFORE))
    assert (plan.mode, plan.output) == (MICRO_BATCH, "append")
    assert plan.reason == "it joins two streams: each finding is made when its window has closed"
    assert timedelta(0) <= plan.reach - BOUND <= timedelta(seconds=1)


def test_a_join_by_window_needs_no_other_bound(spark: SparkSession) -> None:
    def detect(events: SourceEvents) -> DataFrame:
        logins, others = (events.with_window(events[name]).drop("event_time") for name in ("logins", "resets"))
        return count(logins.join(others.select("window", "user_id"), ["window", "user_id"]))

    assert planned(spark, detect).reach == timedelta(0)

    def twice(events: SourceEvents) -> DataFrame:
        others = events.with_window(events["resets"]).select("window", "user_id")
        return count(events.with_window(events["logins"]).join(others, ["window", "user_id"]))

    with pytest.raises(ConfigError, match=r"joins event_time and window; a side of a join .* one column of event time"):
        planned(spark, twice)


def test_a_window_needs_a_time(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="rows without 'event_time' have no window"):
        planned(spark, lambda events: events.with_window(events["logins"].select("user_id")))
    with pytest.raises(ConfigError, match="window=None is declared"):
        planned(spark, lambda events: events.with_window(events["logins"]), window=None)


@pytest.mark.parametrize("bounds", [[], [AFTER], [BEFORE]])
def test_a_join_without_both_bounds_is_refused_with_what_to_write(spark: SparkSession, bounds: list[str]) -> None:
    for how in ("inner", "left"):
        with pytest.raises(ConfigError, match=r"grows for ever; add both limits .*INTERVAL 10 MINUTES"):
            planned(spark, joined(how, *bounds))


def test_findings_that_would_come_too_late_to_notify_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"page_within.*must be longer than 0:10:00"):
        planned(spark, joined("inner", AFTER, BEFORE), page_within=BOUND)
    assert planned(spark, joined("inner", AFTER, BEFORE), page_within=BOUND, notify=False).reach


def test_what_is_declared_is_read_and_what_is_read_is_declared(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="does not read source 'resets'"):
        planned(spark, lambda events: count(events.with_window(events["logins"])))
    with pytest.raises(ConfigError, match=r"source 'reset', which it does not declare.*did you mean 'resets'"):
        planned(spark, lambda events: count(events["reset"]))


def test_sources_put_together_take_micro_batches_and_never_share_a_checkpoint(spark: SparkSession) -> None:
    plan = planned(spark, both)
    assert (plan.mode, plan.output, plan.reach) == (MICRO_BATCH, "update", timedelta(0))
    assert plan.reason.startswith("it puts streams together whose duplicates are dropped")

    def other_way_round(events: SourceEvents) -> DataFrame:
        return both(SourceEvents(TWO.path, {"logins": events["resets"], "resets": events["logins"]}, TWO))

    assert planned(spark, other_way_round).fingerprint != plan.fingerprint, "its first source is another topic"


def test_each_source_is_parsed_as_far_as_it_is_used(spark: SparkSession) -> None:
    rows = make_findings(joined("inner", AFTER, BEFORE)(planned_events(spark, [LOGINS, RESETS], TWO, TWO.path)), TWO,
                         Emission())  # fmt: skip
    used = used_columns(optimize(rows), [LOGINS, RESETS])
    needed = {"raw_topic", "raw_partition", "raw_offset", "event_time", "tick", "user_id"}
    assert used == {"logins": needed, "resets": needed}


class Shop:
    """Purchases and changes of addresses, and what must be found in them."""

    def __init__(self, seed: int) -> None:
        chance, self.start = random.Random(seed), moment("12:00:00")
        self.purchases = [
            self._event(chance, "purchases", n, amount=chance.choice([-5.0, 60.0, 90.0])) for n in range(240)
        ]
        self.changes = [self._event(chance, "address_changes", n) for n in range(40)]

    def _event(self, chance: random.Random, source: str, number: int, **columns: Any) -> dict[str, Any]:
        at = self.start + timedelta(seconds=chance.randrange(2 * 3600))
        text = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        place = {"raw_topic": f"raw.{source}", "raw_partition": 0, "raw_offset": number, "source": source}
        times = {"event_time": text, "ingested_at": text, "schema_version": 1, "timestamp": text}
        # In the order in which they come: up to 8 seconds late, which is less than the lateness.
        return (
            place
            | times
            | {"customer_id": chance.choice("abcdef"), **columns, "_": at.timestamp() + 8 * chance.random()}
        )

    def after_a_change(self) -> dict[tuple[str, datetime], float]:
        found: dict[tuple[str, datetime], float] = defaultdict(float)
        for one in self.purchases:
            if one["amount"] > 0 and self._changes_before(one):
                found[one["customer_id"], window_of(one)] += one["amount"]
        return dict(found)

    def without_a_change(self) -> dict[tuple[str, datetime], float]:
        found: dict[tuple[str, datetime], float] = defaultdict(float)
        for one in self.purchases:
            found[one["customer_id"], window_of(one)] += not self._changes_before(one)
        return {key: count for key, count in found.items() if count}

    def both(self) -> dict[tuple[str, datetime], float]:
        return dict(Counter((one["customer_id"], window_of(one)) for one in [*self.purchases, *self.changes]))

    def _changes_before(self, purchase: dict[str, Any]) -> int:
        bought = time_of(purchase)
        changed = [time_of(one) for one in self.changes if one["customer_id"] == purchase["customer_id"]]
        return sum(at <= bought <= at + BOUND for at in changed)


def time_of(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["event_time"])


def window_of(event: dict[str, Any]) -> datetime:
    return time_of(event) - (time_of(event) - EPOCH) % WINDOW


def batches(events: list[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    """In the order in which they come, each third of them twice."""
    ordered = [{k: v for k, v in one.items() if k != "_"} for one in sorted(events, key=lambda one: one["_"])]
    twice = [copy for number, one in enumerate(ordered) for copy in [one] * (1 + (number % 3 == 0))]
    return [twice[at : at + size] for at in range(0, len(twice), size)]


def without_change(events: SourceEvents) -> DataFrame:
    """Purchases that no change was before: known only when none can come any more."""
    changes = events["address_changes"].select(
        F.col("customer_id").alias("changed"), F.col("event_time").alias("changed_at")
    )
    on = (F.col("customer_id") == F.col("changed")) & (F.col("changed_at") <= F.col("event_time"))
    on &= F.col("changed_at") >= F.col("event_time") - F.expr("INTERVAL 10 MINUTES")
    alone = events["purchases"].join(changes, on, "left").where("changed IS NULL")
    return events.with_window(alone).groupBy("window", "customer_id").agg(F.count("*").alias("score"))


def together(events: SourceEvents) -> DataFrame:
    bought, moved = (events[name].select("event_time", "customer_id") for name in ("purchases", "address_changes"))
    rows = events.with_window(bought.unionByName(moved))
    return rows.groupBy("window", "customer_id").agg(F.count("*").alias("score"))


@pytest.mark.usefixtures("quick_batches")
@pytest.mark.parametrize(
    ("detect", "recount"),
    [(None, Shop.after_a_change), (without_change, Shop.without_a_change), (together, Shop.both)],
    ids=["semi", "left", "together"],
)
def test_two_sources_give_what_a_recount_does_across_a_restart(
    spark: SparkSession, tmp_path: Path, detect: Detect | None, recount: Callable[[Shop], dict[Any, float]]
) -> None:
    catalog, shop = read_catalog(EXAMPLE), Shop(seed=3)
    spec = catalog.detector("spending_after_change")
    expected = recount(shop)
    if detect is not None:
        spec = replace(spec, levels=Levels(email=2))
    function = detect or cast(Detect, DeclaredFunction(spec.path, "detect"))
    sources = catalog.sources_of(spec)
    feeds = {source.name: Feed(spark, tmp_path / source.name) for source in sources}
    found: list[Finding] = []

    def query() -> Any:
        def events_of(source: Source) -> DataFrame:
            records = feeds[source.name].records
            return prepare_events(
                parse_events(records, source, is_only=False), spec, source.lateness + SLACK, is_only=False
            )

        rows = function(by_source(sources, spec.path, spec, events_of))
        writer = make_findings(rows, spec, Emission()).writeStream.outputMode("append")
        return writer.option("checkpointLocation", str(tmp_path / "query")).foreachBatch(take).start()

    def take(batch: DataFrame, _: int) -> None:
        found.extend(Finding.model_validate_json(row.value) for row in batch.collect())

    purchases, changes = batches(shop.purchases, 110), batches(shop.changes, 30)
    running = query()
    try:
        for number, batch in enumerate(purchases):
            feeds["purchases"].send(batch)
            if number:  # the other source comes later, by much more than the lateness
                feeds["address_changes"].send(changes[number - 1])
            running.processAllAvailable()
            if number == 1:
                running.stop()
                running = query()
        for rest in changes[len(purchases) - 1 :]:
            feeds["address_changes"].send(rest)
        for feed in [*feeds.values()] * 2:  # a batch has the watermark of the one before
            feed.send([tick("23:00:00")])
        running.processAllAvailable()
    finally:
        running.stop()
    assert len({one.finding_id for one in found}) == len(found)
    above = {key: score for key, score in expected.items() if score > spec.levels.lowest}
    assert scores(found) == pytest.approx(above)
    assert len(above) > 3


def scores(found: list[Finding]) -> dict[tuple[str, datetime], float]:
    return {(one.entity["customer_id"], one.window_start or EPOCH): one.score for one in found}


def test_sources_put_together_count_in_a_range_as_on_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Lower bounds above the highest limit are made exact by such a range."""
    path = tmp_path / "both.py"
    path.write_text(
        "from pyspark.sql import functions as F\n\ndef detect(events):\n"
        '    logins, resets = (events[name].select("event_time", "user_id") for name in ("logins", "resets"))\n'
        "    rows = events.with_window(logins.unionByName(resets))\n"
        '    return rows.groupBy("window", "user_id").agg(F.count("*").alias("score"))\n'
    )
    chance, expected = random.Random(5), Counter[tuple[str, datetime]]()
    given: dict[str, list[dict[str, Any]]] = {"logins": [], "resets": []}
    for number in range(300):
        at, user, source = (
            moment("12:00:00") + timedelta(seconds=chance.randrange(40)),
            chance.choice("ab"),
            chance.choice(["logins", "resets"]),
        )
        place = {"raw_topic": source, "raw_partition": 0, "raw_offset": number, "source": source, "schema_version": 1}
        text = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        given[source].append(place | {"event_time": text, "ingested_at": text, "user_id": user})
        expected[user, at - (at - EPOCH) % timedelta(seconds=10)] += 1

    def events_of(_: SparkSession, source: Source) -> DataFrame:
        rows = [(json.dumps(one).encode(),) for one in given[source.name]]
        return parse_events(spark.createDataFrame(rows, "value binary"), source)

    spec = replace(TWO, path=path, levels=replace(SPEC.levels, email=0))
    wanted = Range(start=moment("12:00:10"), end=moment("12:00:30"), run_id="r")
    rows = find_in_range(spark, EventReader(events_of), spec, [LOGINS, RESETS], wanted).collect()
    found = [Finding.model_validate_json(row.value) for row in rows]
    inside = {key: count for key, count in expected.items() if wanted.start <= key[1] < wanted.end}
    assert {(one.entity["user_id"], one.window_start): one.score for one in found} == inside
