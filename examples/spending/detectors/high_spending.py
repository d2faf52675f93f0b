"""Customers who spend many times of what is usual in their segment (stolen cards, resellers).

Catches: any number of purchases that together are unusual for a customer like this one within ten minutes.
Misses: customers whose segment is not known, and spending that is spread over hours.
When it fires, look first at: whether the segment is right, and in which shops the purchases were made.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, Tables, at, detector, email, urgent


@detector(
    source="purchases",
    tables=["segments"],
    entity="customer_id",
    window="10 minutes",
    levels=Levels(email=10, urgent=50),
    score="rising",
    owner="fraud@example.com",
    runbook="https://example.com/runbooks/high-spending",
    stage="live",
)
def detect(events: DataFrame, tables: Tables) -> DataFrame:
    known: DataFrame = tables.join(events.where("amount > 0"), "segments", how="inner")  # either way
    purchases = known.where("usual_spending > 0")  # either way
    return purchases.groupBy("window", "customer_id").agg(
        F.sum(F.col("amount") / F.col("usual_spending")).alias("score"),
        F.max("segment").alias("segment"),
        F.max("event_time").alias("event_time_max"),
    )


SEGMENTS = (
    at("11:00:00", customer_id="c1", segment="student", usual_spending=10.0)
    .then(at("11:00:00", customer_id="c2", segment="family", usual_spending=100.0))
    .then(at("12:05:00", customer_id="c1", segment="family", usual_spending=100.0))
    .then(at("11:00:00", customer_id="c3", segment="new", usual_spending=0.0))
    .then(at("11:00:00", customer_id="c4", segment="student", usual_spending=10.0))
    .then(at("12:05:00", customer_id="c4", segment="in error", usual_spending=-10.0))
)
CASES = [
    Case(
        "a student spends eleven times of what is usual, by two purchases, and gets something back",
        events=at("12:00:00", customer_id="c1", amount=60.0)
        .then(after="1 minute", amount=50.0)
        .then(after="1 minute", amount=-500.0),
        tables={"segments": SEGMENTS},
        expect=[email(customer_id="c1", window="12:00:00", score=11)],
    ),
    Case(
        "ten times is the limit",
        events=at("12:00:00", customer_id="c1", amount=100.0).then(after="1 second", amount=0.0),
        tables={"segments": SEGMENTS},
        expect=[],
    ),
    Case(
        "fifty times is not urgent yet",
        events=at("12:00:00", customer_id="c1", amount=500.0),
        tables={"segments": SEGMENTS},
        expect=[email(customer_id="c1", score=50)],
    ),
    Case(
        "51 times is urgent, 10.5 times is an e-mail",
        events=at("12:00:00", customer_id="c1", amount=510.0).then(at("12:01:00", customer_id="c2", amount=1050.0)),
        tables={"segments": SEGMENTS},
        expect=[
            urgent(customer_id="c1", score=51),
            email(customer_id="c2", score=10.5),
        ],
    ),
    Case(
        "a little more than fifty and ten times",
        events=at("12:00:00", customer_id="c1", amount=505.0).then(at("12:01:00", customer_id="c2", amount=950.0)),
        tables={"segments": SEGMENTS},
        expect=[urgent(customer_id="c1", score=50.5)],
    ),
    Case(
        "the segment of the time of the purchase counts",
        events=at("12:06:00", customer_id="c1", amount=110.0),
        tables={"segments": SEGMENTS},
        expect=[],
    ),
    Case(
        "customers without a segment, or with one of which nothing is usual",
        events=at("12:00:00", customer_id="c9", amount=9000.0).then(at("12:01:00", customer_id="c3", amount=9000.0)),
        tables={"segments": SEGMENTS},
        expect=[],
    ),
    Case(
        "a usual spending below zero does not take away from what was spent before",
        events=at("12:00:00", customer_id="c4", amount=110.0).then(after="6 minutes", amount=100.0),
        tables={"segments": SEGMENTS},
        expect=[email(customer_id="c4", score=11)],
    ),
    Case(
        "two windows of ten minutes",
        events=at("12:09:00", customer_id="c2", amount=900.0).then(after="2 minutes", amount=900.0),
        tables={"segments": SEGMENTS},
        expect=[],
    ),
]
