"""Make the AppCDS archive: Spark's classes, parsed once and mapped by every later JVM, which halves the start of a job.

A session runs once what jobs and batches run, and its JVM lists the classes that it loads; a second JVM with the same
options and class path writes the archive from that list.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.spark.engine import jvm
from tocsin.spark.session import clean_scratch, kafka_options, streaming_session

_JOB = "training"
_DUMP_SECONDS = 600
_EVENT = "at timestamp, user string, n bigint, tags array<string>"


def make_archive(archive: Path, settings: Settings, topics: tuple[str, str]) -> None:
    """Write `archive`, which must not exist. Raises a TransientError if the second JVM failed.

    `settings` lead to a broker, and name a state folder that is not used for anything else. Of `topics`, the first is
    read and holds a few records, the second is written.
    """
    classes = clean_scratch(settings, _JOB) / "classes.list"
    listing = f"--conf spark.driver.defaultJavaOptions=-XX:DumpLoadedClassList={classes} pyspark-shell"
    os.environ["PYSPARK_SUBMIT_ARGS"] = listing
    with _session(settings) as spark:
        command = psutil.Process(jvm.process_id()).cmdline()
        _run_streams(spark, settings, *topics)
        _run_batches(spark, settings)
    own = "-XX:DumpLoadedClassList", "-XX:SharedArchiveFile"  # of an archive that is there nothing is written
    java, *options = (word for word in _java_command(command) if not word.startswith(own))
    files = [f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"]
    command = [java, "-Xshare:dump", *files, "-Xlog:cds=off", "-Xlog:cds*=off", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_SECONDS, check=False)
    if done.returncode or not archive.exists():
        raise TransientError(f"Java wrote no archive of classes (exit code {done.returncode}): {done.stderr[-1000:]}")


@contextlib.contextmanager
def _session(settings: Settings) -> Iterator[SparkSession]:
    spark = streaming_session(settings, job=_JOB, slots=8)
    try:
        yield spark
    finally:
        spark.stop()
        jvm.end()  # the list is complete when it has ended


def _run_streams(spark: SparkSession, settings: Settings, reads: str, writes: str) -> None:
    kafka = kafka_options(settings)
    records = spark.readStream.format("kafka").options(**kafka, subscribe=reads, startingOffsets="earliest").load()
    parsed = records.select(F.from_json(F.col("value").cast("string"), _EVENT).alias("event"), "timestamp")
    events = parsed.select("event.*", "timestamp").where("at IS NOT NULL").observe("seen", F.count("*").alias("rows"))
    distinct = events.withWatermark("at", "10 seconds").dropDuplicates(["user", "n", "at"])
    counts = distinct.groupBy(F.window("at", "10 seconds"), "user").agg(*_figures())
    writer = counts.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka").outputMode("update")
    writer = writer.options(**kafka, topic=writes, checkpointLocation=str(settings.checkpoint(_JOB) / "query"))
    writer.trigger(availableNow=True).start().awaitTermination()
    query = writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload]  # not in its overloads
    while not query.recentProgress and query.isActive:
        query.awaitTermination(1)  # raises if it has failed
    spark.sparkContext.setLogLevel("OFF")  # Spark logs an aborted batch as a dozen errors; it is none
    query.stop()


def _run_batches(spark: SparkSession, settings: Settings) -> None:
    """Run what sealing, profiles and backfills run: Parquet in sorted buckets, aggregates, joins."""
    folder = settings.checkpoint(_JOB)
    rows = spark.range(100).selectExpr(
        "timestamp_seconds(id) at", "concat('user', id % 3) user", "id n", "array('a', 'b') tags"
    )
    rows.dropDuplicates(["user", "n"]).repartition(2, "user").sortWithinPartitions("user", "at").write.parquet(
        str(folder / "landed")
    )
    landed = spark.read.parquet(str(folder / "landed"))
    landed.write.bucketBy(2, "user").sortBy("user", "at").option("path", str(folder / "days")).saveAsTable("days")
    days = spark.table("days").where("at >= timestamp '1970-01-01'")
    _collect(days.groupBy(F.window("at", "10 seconds"), "user").agg(*_figures()))
    profile = days.agg(F.approx_count_distinct("user"), F.expr("percentile_approx(n, 0.9)"), F.stddev("n"))
    _collect(profile.crossJoin(F.broadcast(days.agg(F.countDistinct("user")))))
    _collect(days.join(landed, ["user", "n"], "left_anti").orderBy("n").limit(5))
    _collect(days.select(F.sha2(F.to_json(F.struct("user", "n")), 256), F.explode("tags"), F.rlike("user", F.lit("a"))))
    spark.sql("DROP TABLE days")


def _figures() -> list[Column]:
    return [
        F.count("*").alias("score"),
        F.sum("n"),
        F.max("at"),
        F.collect_set("user"),
        F.avg("n"),
        F.collect_list("n"),
    ]


def _collect(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
    rows.collect()


def _java_command(words: list[str]) -> list[str]:
    words_kept, takes_value = [words[0]], False
    for word in words[1:]:
        if not word.startswith("-") and not takes_value:
            break
        words_kept.append(word)
        takes_value = word in ("-cp", "-classpath", "--class-path")
    return words_kept
