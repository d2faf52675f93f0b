"""A program of tests: counts what arrives on one topic in windows of an hour, in real-time mode, onto another.

Arguments: state folder, bootstrap servers, topic read, topic written. It runs until it is ended.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F

from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.settings import Settings
from tocsin.spark.session import clean_scratch, streaming_session


def main(state: Path, servers: str, source: str, sink: str) -> None:
    settings = Settings(state=state, spark=SparkSettings(trigger_seconds=5))
    clean_scratch(settings, "count")
    session = streaming_session(settings, job="count", slots=3)
    read = session.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}
    )
    counted = (
        read.load()
        .withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "1 hour"), "value")
        .agg(F.count("*").alias("n"))
        .select(F.col("value").alias("key"), F.col("n").cast("string").alias("value"))
    )
    write = counted.writeStream.format("kafka").outputMode("update")
    write = write.trigger(realTime="5 seconds")  # type: ignore[call-overload]  # left out of its signature in 4.3.0
    options = {"kafka.bootstrap.servers": servers, "topic": sink, "checkpointLocation": str(state / "checkpoint")}
    write.options(**options).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
