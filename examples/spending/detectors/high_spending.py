"""Customers who spend many times of what is usual in their segment (stolen cards, resellers).

Catches: any number of purchases that together are unusual for a customer like this one within ten minutes.
Misses: customers whose segment is not known, and spending that is spread over hours.
When it fires, look first at: whether the segment is right, and in which shops the purchases were made.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, Tables, detector


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
    known: DataFrame = tables.join(events.where("amount > 0"), "segments", how="inner")
    purchases = known.where("usual_spending > 0")
    return purchases.groupBy("window", "customer_id").agg(
        F.sum(F.col("amount") / F.col("usual_spending")).alias("score"),
        F.max("segment").alias("segment"),
        F.max("event_time").alias("event_time_max"),
    )
