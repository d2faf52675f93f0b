"""Figures of each path of a web application, as Redis hashes, from the lines of Heroku's router.

`routes` names the path of each digest (SHA-256, as 64 hex digits). `<digest>::service` and `<digest>::connect` hold the
fields `sum`, `count` and `average` of the milliseconds that requests of that path took; `<digest>::statuses` counts the
answers by their status. A line without a value, such as that of a request that timed out, adds nothing to its figures.

Each event is taken apart into what it adds to each hash, so that one aggregate makes all of them.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="router", key=["hash", "field"], window=None, sink="redis", owner="platform@example.com", stage="live")
def view(events: DataFrame) -> DataFrame:
    digest = F.sha2("path", 256)
    added = F.array(
        _adds(F.lit("routes"), digest, text=F.col("path")),
        _adds(F.concat(digest, F.lit("::service")), F.lit(""), number=F.col("service")),
        _adds(F.concat(digest, F.lit("::connect")), F.lit(""), number=F.col("connect")),
        _adds(F.concat(digest, F.lit("::statuses")), F.col("status").cast("string"), number=F.lit(1.0)),
    )
    parts = events.select(F.inline(added)).where("field IS NOT NULL AND (text IS NOT NULL OR number IS NOT NULL)")
    totals = parts.groupBy("hash", "field").agg(
        F.max("text").alias("text"), F.sum("number").alias("sum"), F.count("number").alias("count")
    )
    return totals.select("hash", F.inline(_fields()))


def _adds(name: Column, field: Column, text: Column | None = None, number: Column | None = None) -> Column:
    """Say what an event adds to one field of one hash."""
    text, number = (F.lit(None) if one is None else one for one in (text, number))
    return F.struct(
        name.alias("hash"),
        field.alias("field"),
        text.cast("string").alias("text"),
        number.cast("double").alias("number"),
    )


def _fields() -> Column:
    """Make the fields of one hash of its totals; all values are text, as in Redis."""
    average = F.col("sum") / F.col("count")
    durations = F.array(
        _field(F.lit("sum"), F.col("sum")), _field(F.lit("count"), F.col("count")), _field(F.lit("average"), average)
    )
    path, statuses = _field(F.col("field"), F.col("text")), _field(F.col("field"), F.col("count"))
    of_figures = F.when(F.col("hash").endswith("::statuses"), F.array(statuses)).otherwise(durations)
    return F.when(F.col("text").isNotNull(), F.array(path)).otherwise(of_figures)


def _field(name: Column, value: Column) -> Column:
    return F.struct(name.alias("field"), value.cast("string").alias("value"))
