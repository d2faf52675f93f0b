"""The Spark session of a bounded program, such as a seal or a backfill: here, or on a cluster."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import structlog
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import LOOPBACK
from tocsin.declare.settings import Settings
from tocsin.platform.fork_server import CHILD, FOLDERS
from tocsin.platform.storage.s3_store import prepare_s3a
from tocsin.setup.java import find_java, in_words, log_and_archive
from tocsin.setup.paths import here
from tocsin.spark.engine import cluster
from tocsin.spark.engine.attachment import LOG, Attachment, engine_code
from tocsin.spark.engine.warm_engine import ENGINE_LOG, attach_or_start
from tocsin.spark.session import (
    LOCAL_FILES,
    LOCAL_PYTHON,
    QUICK_START,
    clean_scratch,
    connector,
    engine_options,
    scratch_folder,
    start_session,
)

MASTER, POOL = "local[2]", "batch"
"""The master of Airflow's connection, as its component declares it, and the pool of the engine for programs with it."""
_OF_SUBMISSION = ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions")


log = structlog.get_logger()


@dataclass
class SharedSession:
    """The session of the first batch that runs in it, as soon as there is one; `close` stops that."""

    stack: ExitStack = field(default_factory=ExitStack)
    job: str = ""
    spark: SparkSession | None = None

    def close(self) -> None:
        """Stop the session; a later batch starts another."""
        self.stack.close()
        self.spark = None


_SHARED: ContextVar[SharedSession | None] = ContextVar("shared session", default=None)


@contextmanager
def shared_session(session: SharedSession | None = None) -> Iterator[None]:
    """Let all batches of the block run one after another in `session`, the caller's to close.

    Without one they run in the session that the first of them starts, and that ends with the block.
    """
    own = session or SharedSession()
    before = _SHARED.set(own)
    try:
        yield
    finally:
        _SHARED.reset(before)
        if session is None:
            own.close()


@contextmanager
def running_batch(settings: Settings, job: str) -> Iterator[SparkSession]:
    """Run the block with a session of `job`, in a clean scratch folder. Only for the holder of the job's lock.

    In `shared_session` it is that of an earlier batch, if there was one, and goes on behind it. Raises as `_running`.
    A program that spark-submit has started with `MASTER` shares an engine with those before and beside it.
    """
    shared = _SHARED.get()
    if shared is None:
        with _running(settings, job) as spark:
            yield spark
    else:
        if shared.spark is None:
            shared.job, shared.spark = job, shared.stack.enter_context(_running(settings, job))
        elif job != shared.job:
            clean_scratch(settings, job)
        yield shared.spark


@contextmanager
def _running(settings: Settings, job: str) -> Iterator[SparkSession]:
    """Run the block with a session of its own on `spark.master`; `local`: two threads, or what spark-submit was given.

    Raises:
        ConfigError: there is no Java, or the Kafka connector is not installed; a retry does not help.
        TransientError: the cluster cannot be reached, or has no room.
    """
    if not _is_submitted():  # spark-submit runs on a Java already
        os.environ["JAVA_HOME"] = str(find_java().home)
    master = _master(settings)
    # Spark would try for a minute, and end without a word about the address.
    if refused := cluster.refusal_of_masters(settings.spark.model_copy(update={"master": master})):
        raise TransientError(refused)
    clean_scratch(settings, job)
    if attachment := _attach(settings, job, master):
        with contextlib.closing(attachment):
            attachment.claim(settings.checkpoint(job))
            try:
                yield attachment.session
            finally:
                if attachment.is_lost(0):  # Py4J says only that a connection has ended, and callers may go on without
                    place = engine_settings(settings).state / ENGINE_LOG
                    log.error("engine has ended, and what ran in it; a retry starts another", job=job, log=str(place))
        return
    spark = batch_session(settings, job, master)
    try:
        if not master.startswith(LOCAL):
            cluster.begin(spark, scratch_folder(settings, job))
            cluster.await_executor(spark, settings.spark)
        yield spark
    finally:
        spark.stop()


def _attach(settings: Settings, job: str, master: str) -> Attachment | None:
    """Attach to the engine of batches, or start it; None if `job` has to have, or has to do with, a JVM of its own."""
    if not settings.engine.enabled or master != MASTER or not (_is_submitted() or CHILD in os.environ):
        return None
    own = engine_settings(settings)
    # Without PYTHONPATH, where spark-submit puts a PySpark that does not find its Spark.
    command = [str(here().venv / "bin" / "python"), "-E", "-m", "tocsin.spark.batch_engine", str(settings.project)]
    try:
        attachment = attach_or_start(own, POOL, job, command)
    except (OSError, TransientError) as error:
        log.warning("starts a JVM of its own", job=job, error=str(error))
        return None
    output = f"/proc/{os.getpid()}/fd/2"  # the log of Airflow's task
    if os.access(output, os.W_OK) and not stat.S_ISSOCK(os.stat(output).st_mode):  # which nothing can open
        attachment.session.sparkContext.environment[LOG] = output
    return attachment


def engine_settings(settings: Settings) -> Settings:
    """Give the settings of the engine of batches, whose state is a folder of its own: one for each code and storage."""
    code = hashlib.sha256(f"{engine_code(settings)} {settings.storage}".encode()).hexdigest()[:16]
    return settings.model_copy(update={"state": settings.state / FOLDERS / code})


def batch_session(settings: Settings, job: str, master: str) -> SparkSession:
    """Start the session of `job` on `master`, in a JVM of its own, or in that of the spark-submit that runs it.

    Raises a ConfigError if the Kafka connector is not installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark, builder = settings.spark, SparkSession.builder.appName(job)
    options = engine_options(settings, scratch := scratch_folder(settings, job))
    storage, has_executors = settings.storage, not master.startswith(LOCAL)
    options |= prepare_s3a(storage, storage.remote_uri, scratch, has_executors=has_executors)
    # Sealed files are sorted by key, so no time leaves a row group out; but each is looked through for one. Measured on
    # 30 million rows: failed_logins takes 32 CPU-seconds with a range of times pushed down, and 10 without.
    options["spark.sql.parquet.filterPushdown"] = "false"
    if not has_executors:
        options |= LOCAL_PYTHON
    # Many files are listed by a job; by default it has a task for each of them.
    options["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = "16"
    if not _is_submitted():
        address = LOOPBACK if spark.master == LOCAL else spark.driver_host
        os.environ |= {"SPARK_LOCAL_IP": address, "SPARK_LAUNCHER_OPTS": QUICK_START}
        builder = builder.master(MASTER)
        options |= {"spark.driver.memory": "1g", "spark.driver.extraClassPath": connector()}
        # With G1 a sealed day of a million events took 57 and 59 CPU-seconds, with Serial 51 and 51.
        options["spark.driver.extraJavaOptions"] = in_words(["-XX:+UseSerialGC", *log_and_archive()])
        if not has_executors:
            options |= LOCAL_FILES
    if spark.master != LOCAL:
        builder = builder.master(spark.master)
        options["spark.sql.shuffle.partitions"] = str(max(spark.shuffle_partitions, spark.resources.slots))
        options = options | {"spark.driver.extraClassPath": connector()}
        options = cluster.with_executors(options, spark, spark.resources)
    elif has_executors:
        options = _as_submitted(options)
    return start_session(builder, options)


def _as_submitted(options: dict[str, str]) -> dict[str, str]:
    """Leave to spark-submit what a connection of Airflow decides: a cluster that no setting describes.

    The number of its cores is not known before all executors have come, so Spark's own number of partitions behind an
    exchange stays: it puts small ones together when it reads them, by the cores that there are then.
    """
    left = {key: value for key, value in options.items() if key not in _OF_SUBMISSION}
    jars = filter(None, [SparkConf().get("spark.jars"), options.get("spark.jars")])
    return left | {"spark.jars": ",".join(jars)}


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit sets it


def _master(settings: Settings) -> str:
    """Read the master of the setting, or the one that spark-submit was given while that is `local`."""
    if settings.spark.master != LOCAL or not _is_submitted():
        return MASTER if CHILD in os.environ else settings.spark.master
    SparkContext._ensure_initialized()  # before it no setting of the JVM is seen
    return SparkConf().get("spark.master") or LOCAL
