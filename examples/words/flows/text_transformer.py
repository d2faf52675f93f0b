"""Shouted lines: those that contain an a, in upper case."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import flow


@flow(source="lines", to="shouted", owner="platform@example.com", stage="live")
def flow(events: DataFrame) -> DataFrame:
    return events.where(F.col("line").contains("a")).withColumn("line", F.upper("line"))
