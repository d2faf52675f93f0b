r"""Lines with their templates: each word that has a digit in it becomes <*>.

Drain's tree treats such words so (He, Zhu, Zheng and Lyu, Drain: An Online Log Parsing Approach with Fixed Depth Tree,
ICWS 2017); it learns other variable words too. Numbers, times, addresses, identifiers and paths with numbers go; names
without a digit stay. Templates that agree in their first 200 characters are one.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import flow

VARIABLE = r"(?<![\w.:/-])[a-zA-Z_.:/-]*+\d(?:[\w.:/-]*\w)?"


@flow(source="lines", to="templates", owner="platform@example.com", stage="live")
def flow(events: DataFrame) -> DataFrame:
    return events.withColumn("template", F.substring(F.regexp_replace("line", VARIABLE, "<*>"), 1, 200))
