"""Where a raw record comes from: its identity, and what the headers of a replay or of a batch say about it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.ingest.parsing_rules import BATCH_HEADER, BATCH_PLACE, INGESTED_AT_HEADER, ORIGIN_HEADER, REPLAYS_HEADER

ISO8601 = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:?\d{2})?$"


def placed(records: DataFrame) -> DataFrame:
    """Add identity, append time and number of replays; `replay_ok` is null for a record that is no replay."""
    origin, ingested, replays = (_header(name) for name in (ORIGIN_HEADER, INGESTED_AT_HEADER, REPLAYS_HEADER))
    read = records.withColumns({"h_origin": origin, "h_ingested": ingested, "h_replays": replays})
    batch = _header(BATCH_HEADER)
    of_batch = batch.rlike(BATCH_PLACE)
    read = read.withColumns(
        {
            "batch": F.when(of_batch, F.split_part(batch, F.lit("/"), F.lit(1))),
            "batch_index": F.when(of_batch, F.split_part(batch, F.lit("/"), F.lit(2)).try_cast("bigint")),
            "h_partition": F.split_part("h_origin", F.lit("/"), F.lit(2)).try_cast("int"),
            "h_offset": F.split_part("h_origin", F.lit("/"), F.lit(3)).try_cast("bigint"),
            "h_at": F.when(F.col("h_ingested").rlike(ISO8601), F.col("h_ingested").try_cast("timestamp")),
            "h_count": F.col("h_replays").try_cast("int"),
        }
    )
    is_replay = F.col("h_origin").isNotNull() | F.col("h_ingested").isNotNull() | F.col("h_replays").isNotNull()
    good = (
        F.col("h_origin").rlike(r"^[^/]+/\d{1,9}/\d{1,18}$")
        & (F.split_part("h_origin", F.lit("/"), F.lit(1)) == F.col("topic"))
        # A replay goes to the partition of its original. Whoever could claim a record that is still to come would have
        # it dropped as a repetition.
        & (F.col("h_partition") == F.col("partition"))
        & (F.col("h_offset") < F.col("offset"))
        & (F.col("h_at") <= F.col("timestamp"))
        & (F.col("h_count") >= 1)
    )
    read = read.withColumn("replay_ok", F.when(is_replay, F.coalesce(good, F.lit(False))))
    replayed = F.coalesce("replay_ok", F.lit(False))
    return read.withColumns(
        {
            "raw_topic": F.col("topic"),
            "raw_partition": F.when(replayed, F.col("h_partition")).otherwise(F.col("partition")),
            "raw_offset": F.when(replayed, F.col("h_offset")).otherwise(F.col("offset")),
            "ingested_at": F.when(replayed, F.col("h_at")).otherwise(F.col("timestamp")),
            "replays": F.when(replayed, F.col("h_count")).otherwise(F.lit(0)),
        }
    )


def _header(name: str) -> Column:
    place = F.array_position(F.col("headers.key"), name).cast("int") - 1
    return F.when(F.col("headers").isNotNull(), F.get(F.col("headers.value"), place).cast("string"))
