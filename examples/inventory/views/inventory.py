"""Stock of each item in each store: what was restocked, less what was sold.

Movements of another kind than `sale` and `restock` change nothing. A stock below zero says that a restock is missing.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="stock_movements", key=["store", "item"], window=None, owner="platform@example.com", stage="live")
def view(events: DataFrame) -> DataFrame:
    signed = F.when(F.col("kind") == "sale", -F.col("quantity")).when(F.col("kind") == "restock", F.col("quantity"))
    return events.groupBy("store", "item").agg(
        F.coalesce(F.sum(signed), F.lit(0)).alias("stock"), F.max("event_time").alias("changed_at")
    )
