"""Paths with more errors than at the same hour of the last days (a bad deploy, a service behind them that is down).

Catches: a share of errors far above the usual one of this path at this hour of the day, within ten minutes.
Misses: paths without three days of history at this hour, and errors that crept in over days.
When it fires, look first at: what was deployed just before, and whether other paths fire too.

The score is how far the number of errors lies above the expected one, in standard deviations, after the transformation
of Anscombe (The Transformation of Poisson, Binomial and Negative-Binomial Data, 1948), which holds for few errors too.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, Tables, at, detector, email, urgent


@detector(source="router", tables=["usual_errors"], entity="path", window="10 minutes",
          levels=Levels(email=5, urgent=10), score="final", owner="platform@example.com",
          runbook="docs/runbooks/error_spike.md", stage="live")  # fmt: skip
def detect(events: DataFrame, tables: Tables) -> DataFrame:
    known = tables.join(events.withColumn("hour", F.hour("event_time")), "usual_errors", how="inner")
    counted: DataFrame = known.groupBy("window", "path").agg(
        F.count_if(F.expr("at = 'error' OR status >= 500")).alias("errors"),
        F.sum("usual").alias("expected"),
        F.count("*").alias("requests"),
    )
    return counted.withColumn("score", 2 * (F.sqrt(F.expr("errors + 3 / 8")) - F.sqrt(F.expr("expected + 3 / 8"))))


USUAL = {
    "usual_errors": at("00:00:00", path="/cart", hour=12, usual=0.01).then(
        at("00:00:00", path="/cart", hour=13, usual=0.1)
    )
}
GOOD = at("12:10:01", path="/cart", at="info", status=200)
BAD = at("12:10:02", path="/cart", at="info", status=500)
TIMED_OUT = at("12:10:03", path="/cart", at="error")
CASES = [
    # Of 40 requests 0.4 errors are expected: 11 of them lie 4.99 above that, 12 lie 5.27, 34 lie 9.96 and 35 lie 10.13.
    Case("11 errors of 40", events=GOOD.repeat(29).then(BAD.repeat(11)), tables=USUAL, expect=[]),
    Case(
        "12 errors of 40",
        events=GOOD.repeat(28).then(BAD.repeat(6)).then(TIMED_OUT.repeat(6)),
        tables=USUAL,
        expect=[email(path="/cart", window="12:10:00")],
    ),
    Case(
        "34 errors of 40",
        events=GOOD.repeat(6).then(BAD.repeat(34)),
        tables=USUAL,
        expect=[email(path="/cart", window="12:10:00")],
    ),
    Case(
        "35 errors of 40",
        events=GOOD.repeat(5).then(BAD.repeat(34)).then(TIMED_OUT),
        tables=USUAL,
        expect=[urgent(path="/cart", window="12:10:00")],
    ),
    Case(
        "20 errors of 40 at an hour with a tenth of errors, and at one of which nothing is known",
        events=at("13:10:01", path="/cart", at="info", status=503)
        .then(after="1 second", status=404)
        .repeat(20)
        .then(at("14:10:01", path="/cart", at="error").repeat(40)),
        tables=USUAL,
        expect=[],
    ),
]
