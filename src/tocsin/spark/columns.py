"""Expressions that records of more than one topic are made with."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

JSON_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC"}
"""Options of Spark's JSON writer for times as our records hold them."""


def own_column(name: str) -> Column:
    """Return the column that has just this name: one without alias is called avg((n / 1.5)), with a dot."""
    return F.col("`" + name.replace("`", "``") + "`")


def any_null(columns: list[Column]) -> Column:
    """Test whether one of `columns` is null."""
    found = F.lit(False)
    for column in columns:
        found = found | column.isNull()
    return found
