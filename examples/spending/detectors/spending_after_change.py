"""Customers who spend much just after their address was changed (taken over accounts).

Catches: purchases within ten minutes after a change of the address, added up over ten minutes.
Misses: thieves who wait, and purchases to the old address.
When it fires, look first at: who changed the address, and from where.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, Sources, detector


@detector(
    source=["purchases", "address_changes"],
    entity="customer_id",
    window="10 minutes",
    levels=Levels(email=200, urgent=1000),
    score="final",
    page_within="1 hour",
    owner="fraud@example.com",
    runbook="https://example.com/runbooks/spending-after-change",
    stage="live",
)
def detect(events: Sources) -> DataFrame:
    changes = events["address_changes"].select(
        F.col("customer_id").alias("changed_customer"), F.col("event_time").alias("changed_at")
    )
    is_soon_after = (
        (F.col("customer_id") == F.col("changed_customer"))
        & (F.col("event_time") >= F.col("changed_at"))
        & (F.col("event_time") <= F.col("changed_at") + F.expr("INTERVAL 10 MINUTES"))
    )
    bought = events["purchases"].where("amount > 0").join(changes, is_soon_after, "left_semi")
    purchases: DataFrame = events.with_window(bought)
    return purchases.groupBy("window", "customer_id").agg(
        F.sum("amount").alias("score"), F.max("event_time").alias("event_time_max")
    )
