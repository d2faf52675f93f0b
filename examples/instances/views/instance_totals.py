"""Total of each metric over all instances that report it, for every 10 seconds.

The counter of an instance only grows, until it restarts from 0. So each new value replaces the last one of its instance
in the window, and the total is the sum of what is left: nothing is counted twice. An instance that is gone reports no
more, and is in no later total.

Two aggregates stand on each other, the latest value of each instance and their sum. Spark takes that on a stream where
both are of the same window; a row is written once, when its window has closed. In one aggregate per metric, the latest
value of every instance that there ever was would have to be kept for good.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="counters", key="metric", window="10 seconds", sink="influx", keep="30 days",
      owner="platform@example.com", stage="live")  # fmt: skip
def view(events: DataFrame) -> DataFrame:
    order = F.struct("event_time", "raw_partition", "raw_offset")
    latest = events.groupBy("window", "metric", "instance").agg(F.max_by("value", order).alias("value"))
    return latest.groupBy("window", "metric").agg(F.sum("value").alias("total"), F.count("*").alias("instances"))
