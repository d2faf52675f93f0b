"""How often each word occurs, in windows of 10 seconds.

A row is updated with each word, and final once its window has closed. A word that comes later than the lateness of its
source allows is not counted.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="words", key="word", window="10 seconds", sink="postgres", table="windowed_counts", keep="7 days",
      owner="platform@example.com", stage="live")  # fmt: skip
def view(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "word").agg(F.count("*").alias("count"))
