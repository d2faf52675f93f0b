r"""Words of lines: lower case, split where a character is neither a letter nor a digit in any script.

Each word is an event of its own. Its place in the line goes into its identity, so a line that is read again after a
crash gives no further words.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import flow


@flow(source="lines", to="words", owner="platform@example.com", stage="live")
def flow(events: DataFrame) -> DataFrame:
    words = F.split(F.lower("line"), r"(?U)\W+")
    return events.select("*", F.posexplode(words).alias("position", "word")).where("word != ''")
