"""`python -m bench.detection`: how well the shipped statistical detectors find what was planted, beside a z-score.

The planted data come from a seeded generator: amounts and errors vary more than the detectors assume, as real ones do.
With `--nab FOLDER`, a checkout of the Numenta Anomaly Benchmark, `template_surge` is also run on its series of counts,
of which people have labelled the anomalies. The files of the detectors run as they are shipped.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.figures import table
from bench.nab import read_series
from examples.log_surges.detectors.template_surge import Past, on_timer
from examples.profiles.detectors import spending_outlier
from examples.slow_routes.detectors import error_spike
from tocsin.alerts.evaluation.scoring import Label, Labels, LimitQuality, ScoredWindow, evaluate
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.durations import span
from tocsin.declare.model.table import FROM, UNTIL
from tocsin.declare.settings import Settings
from tocsin.setup.paths import here
from tocsin.spark.batch_session import running_batch
from tocsin.spark.tables.spark.joined_tables import JoinedTables

_EXAMPLES = here().root / "examples"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_DAY, _STEP = timedelta(days=1), timedelta(minutes=10)
_COUNTS = ("realTweets/", "realAWSCloudwatch/elb_request_count", "realKnownCause/nyc_taxi")
_ALERT_PERIOD = timedelta(hours=1)
"""Alarms within it are one alert."""


def judged(data: str, detector: str, quality: LimitQuality) -> dict[str, object]:
    """Make a row of a table."""
    precision = "no alert" if quality.precision is None else f"{quality.precision:.0%}"
    recall = "" if quality.recall is None else f"{quality.recall:.0%} ({quality.found})"
    delay = "" if quality.delay_seconds is None else span(quality.delay_seconds)
    named: dict[str, object] = {"data": data, "detector": detector, "limit": f"> {quality.limit:g}"}
    return named | {"alerts": quality.alerts, "precision": precision, "recall": recall, "median delay": delay}


def main() -> None:
    """Print the table."""
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    given.add_argument("--nab", type=Path, help="a checkout of the Numenta Anomaly Benchmark")
    arguments = given.parse_args()
    rows = [] if arguments.nab is None else [*surges(arguments.nab)]
    with running_batch(Settings(state=here().root / ".tocsin" / "bench" / "detection"), "bench:detection") as spark:
        rows += [*outliers(spark), *spikes(spark)]
    print(table(rows))


def detected(spark: SparkSession, module: Any, project: str, history: DataFrame, events: DataFrame) -> DataFrame:
    """Run the detector `module` of an example on a day of `events`, with its table made of `history`."""
    catalog = read_catalog(_EXAMPLES / project)
    (spec,) = (spec for spec in catalog.tables.values() if spec.history)
    history.createOrReplaceTempView("events")
    rows = spark.sql(str(spec.sql)).withColumn(FROM, F.lit(_BEGIN)).withColumn(UNTIL, F.lit(None).cast("timestamp"))
    joined = JoinedTables(Path(module.__file__), {spec.name: (spec, rows)})
    found: DataFrame = module.detect(events.withColumn("window", F.window("event_time", "10 minutes")), joined)
    return found


# --- purchases --------------------------------------------------------------------------------------------------------


def outliers(spark: SparkSession, customers: int = 500) -> Iterator[dict[str, object]]:
    """Purchases of 61 days; on the last one some are by a thief, who spends five to fifty times of what is usual."""
    chance = random.Random(1)
    past: list[tuple[str, datetime, float]] = []
    today: list[tuple[str, datetime, float, bool]] = []
    for number in range(customers):
        usual, spread = math.exp(chance.gauss(3, 1)), chance.uniform(0.2, 0.9)
        past += [
            (f"c{number}", _BEGIN + chance.random() * 60 * _DAY, usual * math.exp(chance.gauss(0, spread)))
            for _ in range(chance.randrange(10, 60))
        ]
        # A new sofa now and then: no crime, and in the past of many.
        past += [(f"c{number}", _BEGIN, usual * 30)] * (chance.random() < 0.2)
        today += [
            (f"c{number}", _BEGIN + 60 * _DAY, usual * math.exp(chance.gauss(0, spread)), False)
            for _ in range(chance.randrange(4))
        ]
        if chance.random() < 0.1:
            today.append((f"c{number}", _BEGIN + 60 * _DAY, usual * chance.uniform(5, 50), True))
    columns = "customer_id string, event_time timestamp, amount double"
    events = spark.createDataFrame(today, f"{columns}, planted boolean")
    found = detected(spark, spending_outlier, "profiles", spark.createDataFrame(past, columns), events)
    ours = [(row.score, row.planted) for row in found.collect()]
    amounts = defaultdict(list)
    for customer, _, amount in past:
        amounts[customer].append(amount)
    plain = [(_z(amount, amounts[customer]), planted) for customer, _, amount, planted in today]
    for name, scores, limits in (("spending_outlier", ours, (10, 40)), ("z-score", plain, (3, 10))):
        for quality in _single(scores, limits):
            yield judged("purchases, planted thefts", name, quality)


# --- errors -----------------------------------------------------------------------------------------------------------


def spikes(spark: SparkSession, paths: int = 12) -> Iterator[dict[str, object]]:
    """Requests of 15 days in steps of ten minutes; in some of the last day's, 5 to 20 % more of them fail."""
    chance = random.Random(2)
    past: list[tuple[str, datetime, int, int]] = []
    today: list[tuple[str, datetime, int, int, bool]] = []
    for number in range(paths):
        base, peak, traffic = chance.uniform(0.001, 0.03), chance.randrange(24), chance.choice((50, 200, 1_000))
        for step in range(15 * 144):
            hour = step // 6 % 24
            share = base * (1 + 4 * max(0.0, math.cos((hour - peak) / 24 * math.tau))) * math.exp(chance.gauss(0, 0.3))
            planted = step >= 14 * 144 and chance.random() < 0.02
            share = min(1.0, share + planted * chance.uniform(0.05, 0.2))
            requests = max(1, round(chance.gauss(traffic, math.sqrt(traffic))))
            errors = sum(chance.random() < share for _ in range(requests))
            row = (f"/p{number}", _BEGIN + step * _STEP, requests, errors)
            today += [(*row, planted)] * (step >= 14 * 144)
            past += [row] * (step < 14 * 144)
    truth = {(path, at): planted for path, at, _, _, planted in today}
    found = detected(
        spark, error_spike, "slow_routes", _requests(spark, past), _requests(spark, [one[:4] for one in today])
    )
    ours = [(row.score, truth[row.path, row.window.start.replace(tzinfo=UTC)]) for row in found.collect()]
    shares = defaultdict(list)
    for path, _, requests, errors in past:
        shares[path].append(errors / requests)
    plain = [(_z(errors / requests, shares[path]), planted) for path, _, requests, errors, planted in today]
    for name, scores, limits in (("error_spike", ours, (5, 10)), ("z-score of the share", plain, (3, 5))):
        for quality in _single(scores, limits):
            yield judged("requests, planted errors", name, quality)


def _requests(spark: SparkSession, counted: Sequence[tuple[str, datetime, int, int]]) -> DataFrame:
    """Make an event of each request."""
    frame = spark.createDataFrame(list(counted), "path string, event_time timestamp, requests int, errors int")
    numbered = frame.select("path", "event_time", "errors", F.explode(F.sequence(F.lit(1), "requests")).alias("number"))
    status = F.when(F.col("number") <= F.col("errors"), 503).otherwise(200)
    return numbered.select("path", "event_time", F.lit("info").alias("at"), status.alias("status"))


# --- counts that people have labelled ---------------------------------------------------------------------------------


def surges(nab: Path) -> Iterator[dict[str, object]]:
    """Run `template_surge`, and a z-score of the last 30 values, on the series of counts, a value for a minute."""
    series = read_series(nab, _COUNTS)
    known = [Label(one.name, one.times[begin], one.times[end]) for one in series for begin, end in one.windows]
    ways: list[tuple[str, Callable[[list[int]], list[float]], tuple[float, ...]]] = [
        ("template_surge", _surge_scores, (6, 20)),
        ("z-score of the last 30", _z_scores, (3, 6)),
    ]
    for name, score, limits in ways:
        windows = [
            ScoredWindow(one.name, at, at, value)
            for one in series
            for at, value in zip(one.times, score([round(count) for count in one.values]), strict=True)
        ]
        for quality in evaluate(windows, Labels(known, is_complete=True), limits, _ALERT_PERIOD, 1):
            yield judged(f"NAB, {len(series)} series of counts", name, quality)


def _surge_scores(counts: list[int]) -> list[float]:
    past, scores = Past(), []
    for count in counts:
        past, found = on_timer(("", ""), replace(past, minute=_BEGIN, lines=count), _BEGIN)
        scores.append(found[0].score or 0.0 if found else 0.0)
    return scores


def _z_scores(counts: list[int]) -> list[float]:
    return [_z(count, counts[max(0, place - 30) : place]) for place, count in enumerate(counts)]


def _single(scores: Sequence[tuple[float, bool]], limits: Sequence[float]) -> list[LimitQuality]:
    """Judge scores, each an alert of its own and without delay, that are known to be of something planted or not."""
    windows = [ScoredWindow(str(n), _BEGIN, _BEGIN, score) for n, (score, _) in enumerate(scores)]
    planted = [Label(w.key, _BEGIN, _BEGIN + _STEP) for w, (_, planted) in zip(windows, scores, strict=True) if planted]
    return evaluate(windows, Labels(planted, is_complete=True), limits, _STEP, 1)


def _z(value: float, past: Sequence[float]) -> float:
    spread = pstdev(past) if len(past) > 1 else 0.0
    return (value - fmean(past)) / spread if spread else 0.0


if __name__ == "__main__":
    main()
