"""A Spark session tuned for one small, long-running streaming job."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.blocks.spark_settings import LATENCIES, ResourceSettings
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.sizes import FINDING_BYTES
from tocsin.declare.setting_blocks import LOOPBACK
from tocsin.declare.settings import Settings
from tocsin.platform.storage.s3_store import prepare_s3a
from tocsin.setup.java import find_java, in_words, log_and_archive
from tocsin.setup.paths import here
from tocsin.spark.engine import cluster, jvm

_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_PLANNING = "check"
_STATE = "spark.sql.streaming.stateStore."
_STATE_MB, _LEAST_STATE_MB = 20, 128
"""What RocksDB may take in an engine for each of its jobs."""
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

EXHAUSTED = signal.SIGUSR2
"""The signal that an engine gets when the heap of its JVM has run out for the first time."""

JOB_SLOTS = 100
"""The task slots that an engine has for each of its jobs: threads, and an idle one is free."""

LOCAL_FILES = {"spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"}
"""Options by which a JVM without executors elsewhere writes files of this machine.

Hadoop's own class starts two processes `chmod` for each file, some twenty for a micro-batch with state.
"""

LOCAL_PYTHON = {"spark.python.daemon.module": "tocsin.spark.python_daemon"}
"""Options by which a JVM without executors elsewhere forks its Python workers; an executor may have no Tocsin yet."""

LONG_POLLS = {"kafka.max.poll.records": "5000"}
"""Options of a Kafka source by which a batch reads: behind each poll, by default of 500 records, Spark asks the broker
twice for the ends of the partition, and drops what it had fetched beyond. Measured on a million records: 1.8 instead of
3.2 CPU-seconds, and 0.3 instead of 1.1 in the broker. In real-time mode what was polled must soon be processed, too.
"""

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of the JVM that only prints the command of the session's: 0.4 CPU-s instead of 0.6."""

_RULES_OF_FILES = [
    f"org.apache.spark.sql.execution.datasources.{rule}"
    for rule in ("SchemaPruning", "PushVariantIntoScan", "PruneFileSourcePartitions")
]
"""Rules of the optimizer that look for files to read: a fifth of the time that it takes for the plan of an ingest."""

SEMANTICS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.sizeOfNull": "false",  # ANSI implies it: without either, the size of null is -1
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
"""How expressions treat values they cannot use: null instead of an error, which one event would raise at each restart.

The same in every session, so a stream, its backfill, `check --plan` and the tests agree (ADR 0016).
"""


def streaming_session(
    settings: Settings, *, job: str, slots: int, resources: ResourceSettings | None = None, latency: str = ""
) -> SparkSession:
    """Start the session of `job` with `slots` task slots (threads, not cores), in a JVM of its own.

    `latency`, of `LATENCIES`, is that of the settings unless given. With `resources` its tasks run on executors of the
    cluster instead, which may come later. A second call after `stop()` reuses the JVM, and may ask for other slots.
    Raises a ConfigError if the Kafka connector is not installed,
    or an option is not the user's.
    """
    os.environ["SPARK_LOCAL_IP"] = settings.spark.driver_host if resources is not None else LOOPBACK
    scratch = scratch_folder(settings, job)
    options = (
        _small_jvm(settings, scratch)
        | engine_options(settings, scratch)
        | _streaming(latency or settings.spark.latency)
    )
    storage = settings.storage
    options |= prepare_s3a(storage, storage.checkpoints, scratch, has_executors=resources is not None)
    if resources is not None:
        options = cluster.with_executors(options, settings.spark, resources)
    else:
        options |= LOCAL_FILES | LOCAL_PYTHON
    prepare_python()
    builder = SparkSession.builder.master(settings.spark.master if resources else f"local[{slots}]").appName(job)
    session = start_session(builder, options)
    if resources is not None:
        cluster.begin(session, scratch)
    return session


def engine_session(settings: Settings, job: str, latency: str, java: Sequence[str] = ()) -> SparkSession:
    """Start the session of an engine, `job`, of which its jobs get sessions of their own; `java` has further options.

    Raises a ConfigError if the Kafka connector is not installed, or an option is not the user's.
    """
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    scratch, engine, storage = scratch_folder(settings, job), settings.engine, settings.storage
    exhausted = f"-XX:OnOutOfMemoryError=kill -{EXHAUSTED.value} {os.getpid()}"
    options = (
        _jvm(settings, scratch, engine.most_heap_mb, [exhausted, *java])
        | engine_options(settings, scratch)
        | _streaming(latency)
    )
    options |= prepare_s3a(storage, storage.checkpoints, scratch, has_executors=False)
    options |= LOCAL_FILES | LOCAL_PYTHON
    options |= {
        "spark.ui.retainedStages": "200",  # whose costs are counted
        "spark.default.parallelism": "2",  # else the number of slots, and as many threads for messages
        "spark.rpc.netty.dispatcher.numThreads": "8",
        # A task that fails for want of memory or stack fails alone; Spark would end the JVM at once, and the tasks of
        # all, before the job is known that is to blame: a heap that ran out isolated its neighbours.
        "spark.executor.killOnFatalError.depth": "0",
        f"{_STATE}rocksdb.boundedMemoryUsage": "true",
        f"{_STATE}rocksdb.maxMemoryUsageMB": str(max(_LEAST_STATE_MB, _STATE_MB * engine.jobs)),
    }
    prepare_python()
    slots = JOB_SLOTS * engine.jobs
    return start_session(SparkSession.builder.master(f"local[{slots}]").appName(job), options)


def prepare_python() -> None:
    """Prepare this process for PySpark, and its JVM if it starts one."""
    os.environ["MALLOC_ARENA_MAX"] = "2"  # the JVM inherits it: glibc keeps an arena for each thread otherwise
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_START
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _import_lightly()


def start_session(builder: SparkSession.Builder, options: dict[str, Any]) -> SparkSession:
    """Start a session, or take the one that runs."""
    session = builder.config(map=options).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


@contextmanager
def planning_session(settings: Settings) -> Iterator[SparkSession]:
    """Start a session that makes plans and runs nothing, in a JVM of its own; nothing is left behind, no log either.

    Modules are found where a job finds them. Raises a ConfigError if there is no Java, or the set-up is not complete,
    and a TransientError with Spark's last words if it did not start.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    with tempfile.TemporaryDirectory() as folder:
        own = settings.apart(Path(folder))
        clean_scratch(own, _PLANNING)
        with redirect_output(Path(folder) / "spark.log"):
            spark = streaming_session(own, job=_PLANNING, slots=1)
        path = sys.path[:]
        # No job inherits these, so what is found there alone is missing in a job.
        outside = {"", str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
        sys.path[:] = [place for place in path if place not in outside]
        # It writes each refusal to standard error as JSON, though the exception says the same.
        refusals = PySparkLogger.getLogger("SQLQueryContextLogger")
        refusals.disabled = True
        try:
            yield spark
        finally:
            sys.path[:], refusals.disabled = path, False
            spark.stop()
            jvm.end()


@contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Let a JVM started in the block write to `log`, for its whole life. TransientError if Spark does not start."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        with log.open("wb") as file:
            for number, _ in kept:
                os.dup2(file.fileno(), number)
        yield
    except PySparkException as error:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise TransientError(f"Spark did not start: {lines[-1] if lines else error}") from error
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


def _import_lightly() -> None:
    """Keep pandas, pyarrow and numpy out of this process until a detector needs them."""
    # `lit` imports pyspark.testing.utils, which imports both to compare versions: 80 MB and 5 s of each start on two
    # cores. pyspark 4.3.0 has no variable, option or lazy import that prevents it.
    heavy = [name for name in ("pandas", "pyarrow") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(heavy))  # type: ignore[arg-type]  # None stands for a module that cannot be had
    try:
        import pyspark.testing.utils as flags  # noqa: PLC0415 - while they are hidden
    finally:
        for name in heavy:
            del sys.modules[name]
    # Each call into the JVM asks whether an argument is an array: 17 MB and 50 ms of a process that has none.
    flags.have_numpy = _Imported("numpy")  # type: ignore[assignment]


class _Imported:
    """True once the module `name` is imported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return self._name in sys.modules


def scratch_folder(settings: Settings, job: str) -> Path:
    """Name the folder of what this process of `job` and its JVM unpack and spill; worthless once they have ended."""
    return settings.checkpoint(job) / "scratch" / str(os.getpid())


def clean_scratch(settings: Settings, job: str) -> Path:
    """Remove what killed processes of `job` left behind, and make the folder."""
    scratch = scratch_folder(settings, job)
    for left in scratch.parent.glob("*"):
        if left == scratch or not (left.name.isdigit() and psutil.pid_exists(int(left.name))):
            shutil.rmtree(left, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch


def connector() -> str:
    """Build the Kafka connector's class path. Unlike in `spark.jars`, its classes can be in the AppCDS archive."""
    folder = here().jars("spark")
    jars = sorted(str(jar) for jar in folder.glob("*.jar"))
    if not jars:
        raise ConfigError.one(folder, "holds no Kafka connector; run: make setup")
    return os.pathsep.join(jars)


def kafka_options(settings: Settings) -> dict[str, str]:
    """Give the options of Spark's Kafka source and sink that lead to the broker of `settings`."""
    return {f"kafka.{key}": value for key, value in settings.kafka.for_java().items()}


def kafka_sink(settings: Settings, topic: str, longest: int) -> dict[str, str]:
    """Give the options of Spark's Kafka sink for `topic`, whose records have up to `longest` bytes."""
    return kafka_options(settings) | {"kafka.max.request.size": str(longest), "topic": topic}


def findings_sink(settings: Settings) -> dict[str, str]:
    """Give the options of Spark's Kafka sink for the topic of findings."""
    return kafka_sink(settings, settings.names.findings, FINDING_BYTES)


def consumer_group(settings: Settings, job: str) -> str:
    """Begin the names of the groups of the job's streaming query (Spark's option `groupIdPrefix`)."""
    return f"{settings.names.group(job)}.spark"


def read_topics(reader: Any, settings: Settings, job: str, topics: Sequence[str], **options: str) -> DataFrame:
    """Read `topics` by `reader`, `spark.read` or `spark.readStream`, for `job`."""
    own = kafka_options(settings) | {"groupIdPrefix": consumer_group(settings, job), "subscribe": ",".join(topics)}
    records: DataFrame = reader.format("kafka").options(**own, **options).load()
    return records


def _small_jvm(settings: Settings, scratch: Path) -> dict[str, str]:
    """Take a small heap and the quick compiler: start and memory matter more than throughput."""
    return _jvm(settings, scratch, settings.spark.heap_mb, ["-XX:TieredStopAtLevel=1"])


def _jvm(settings: Settings, scratch: Path, heap_mb: int, more: Sequence[str]) -> dict[str, str]:
    options = [
        "-Xms128m",
        "-XX:+UseSerialGC",
        "-Xss512k",
        *more,
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        *log_and_archive(),
    ]
    return {
        "spark.driver.memory": f"{heap_mb}m",
        "spark.driver.extraClassPath": connector(),
        "spark.driver.extraJavaOptions": in_words(options),
    }


def engine_options(settings: Settings, scratch: Path) -> dict[str, str]:
    """Give the options that every session has."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # So long may Python and the JVM wait for each other where a result is handed over. After 15 s, the default,
        # that fails on a machine that is too busy, as an UnboundLocalError of PySpark's that hides what it was.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        "spark.sql.debug.maxToStringFields": "200",
        # Else PySpark tells the JVM the line of each call that makes a column: half of all messages of a start.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        **SEMANTICS,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


def _streaming(latency: str) -> dict[str, str]:
    """Keep state in RocksDB, from the first batch on in the one format that micro-batch and real-time mode share."""
    return {
        f"{_STATE}providerClass": _ROCKSDB,
        f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true",
        f"{_STATE}checkpointFormatVersion": "2",
        f"{_STATE}rocksdb.trackTotalNumberOfRows": "false",  # a further look-up for each row that is put
        # Else streams that are put together are read in the task that aggregates them, where the state of their
        # duplicates is taken for its own: "Can only upgrade readStore to writeStore" at each batch.
        "spark.sql.unionOutputPartitioning": "false",
        "spark.sql.optimizer.excludedRules": ",".join(_RULES_OF_FILES),
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.streaming.stopTimeout": "10s",
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": str(LATENCIES[latency].buffer),
        # A Python worker that is busy with one task for so long writes its stack into the log: supervision reads it
        # there when the job counts as hung.
        "spark.python.worker.tracebackDumpIntervalSeconds": "120",
    }
