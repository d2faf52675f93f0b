"""Total of each metric over all instances that report it.

The counter of an instance only grows, until it restarts from 0. So each new value replaces the last one of its
instance, and the total is the sum of the latest values: nothing is counted twice. An instance that has reported nothing
for 10 minutes, 20 at most, is gone, and its value is taken off the total.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="counters", key=["metric", "instance"], total="metric", window=None, keep="10 minutes", sink="influx",
      owner="platform@example.com", stage="live")  # fmt: skip
def view(events: DataFrame) -> DataFrame:
    order = F.struct("event_time", "raw_partition", "raw_offset")
    latest = events.groupBy("window", "metric", "instance").agg(F.max_by("value", order).alias("total"))
    return latest.withColumn("instances", F.lit(1))
