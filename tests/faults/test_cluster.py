"""Detectors whose tasks run on a standalone Spark cluster; the driver is the job, as without one.

The tests share a cluster. Only one test runs a whole installation: the last one.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow.fs import FileSelector, FileType

from bench.past import Past, day_before
from tests.faults.cluster_kills import run
from tests.rig.broker import Broker
from tests.rig.detect_job import JOB, READY_SECONDS, DetectJob, LiveJob, Topic, detect_job, ticking
from tests.rig.lost_executor import losing_an_executor
from tests.rig.object_store import BUCKET, KEY, OTHER_PROFILE, SECRET, object_store
from tests.rig.past_days import GOOD, STEPPED, UNREAD, WINDOWED, HistoryStore, PastDays
from tests.rig.sink_servers import running
from tests.rig.spark_cluster import CORES, SparkCluster, spark_cluster
from tests.rig.waiting import await_that, patient
from tocsin.alerts.store.database import Database
from tocsin.declare.blocks.spark_settings import ResourceSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobState
from tocsin.dev.servers.ports import free_ports
from tocsin.history.places import begin
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.platform.storage.s3_store import CREDENTIALS
from tocsin.setup.java import find_java
from tocsin.spark.tables.published_table import TableFolder
from tocsin.spark.tables.version_store import RowVersion

TWO_SMALL: dict[str, Any] = {"executors": 2, "cores": 1, "memory": "512 MB"}
WORK_SECONDS = 120.0
SMALL = {"executors": 2, "cores": 3, "memory": "512 MB"}  # one executor alone has too few slots for the detector
WATCHED = """title = "Who is watched"
owner = "a@example.com"
topic = "watched"
key = "user_id"
settle = "30 seconds"

[schema]
user_id = "string"
"""
BEFORE = """title = "Who logged in two days before"
owner = "a@example.com"
history = "logins"
sql = "SELECT DISTINCT user_id FROM events"
days = 1
key = "user_id"

[schema]
user_id = "string"
"""
JOINED = '''"""Failures of users in two tables. Catches: growth. Misses: the rest. Look first at: the user."""
from pyspark.sql import functions as F
from tocsin import Levels, detector
@detector(source="logins", tables=["before", "watched"], entity="user_id", window="1 day", levels=Levels(email=0),
          owner="a@example.com", runbook="docs/runbooks/a.md", stage="live")
def detect(events, tables):
    known = tables.join(tables.join(events, "before", how="inner"), "watched", how="inner")
    return known.groupBy("window", "user_id").agg(F.count("*").alias("score"))
'''
WHERE_FROM = """
import sys
from pathlib import Path
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.settings import Settings
from tocsin.spark.session import clean_scratch, streaming_session

spark = SparkSettings(master=sys.argv[2])
settings = Settings(state=Path(sys.argv[1]), spark=spark)
clean_scratch(settings, "detector:x")
session = streaming_session(settings, job="detector:x", slots=1, resources=spark.resources)

def place(_):
    import tocsin.detect.stepper
    return tocsin.detect.stepper.__file__

print("found", *session.sparkContext.parallelize([0], 1).map(place).collect())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as one:
        yield one


@pytest.mark.long
def test_a_query_that_loses_an_executor_starts_again_in_the_same_process(
    tmp_path: Path, broker: Broker, cluster: SparkCluster
) -> None:
    with detect_job(tmp_path, broker, master=cluster.master, resources=SMALL) as job:
        live = LiveJob(job)
        with losing_an_executor(live, cluster.executors) as executors:
            assert len(executors) == 2
            assert all(_has_jar(one, job) for one in executors), "the connector came with the job"
        live.stop()


@pytest.mark.long
def test_executors_share_an_object_store_alone_and_its_key_stands_in_its_file_alone(
    tmp_path: Path, broker: Broker
) -> None:
    """Its checkpoint is there, and the rows of a table that it joins; no executor sees the folder of the job."""
    (events := tmp_path / "spark-events").mkdir()
    logged = {"enabled": "true", "dir": events.as_uri(), "compress": "false"}
    conf = {f"spark.eventLog.{key}": value for key, value in logged.items()}
    here = tmp_path / "job"
    with (
        object_store(tmp_path) as server,
        spark_cluster(tmp_path / "cluster", hidden=here) as cluster,
        detect_job(here, broker, server.settings("team"), master=cluster.master, resources=SMALL, conf=conf) as job,
    ):
        watch(job, "before", "other")
        live = LiveJob(job)
        with losing_an_executor(live, cluster.executors) as executors:
            watch(job, "before", "other", "during")
            committed = job.committed_batches()
            await_that(lambda: job.committed_batches() > committed + 2, READY_SECONDS)  # one begins with these rows
            assert not [one.pid for one in executors if SECRET in " ".join([*one.cmdline(), *one.environ().values()])]
        assert [*stored_folder(job.settings, JOB).glob("*/query/state/*")]
        live.stop()
        files = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        assert [one for one, content in files.items() if SECRET.encode() in content] == [server.credentials]
        assert any(one.is_relative_to(events) and CREDENTIALS.encode() in content for one, content in files.items())


def watch(job: DetectJob, *users: str) -> None:
    """Let its detector find the logins of `users` alone, by a table whose rows are put in force."""
    project = job.settings.project
    (project / "tables").mkdir(exist_ok=True)
    (project / "tables" / "watched.toml").write_text(WATCHED)
    file = project / "detectors" / "failed_logins.py"
    if "watched" not in (text := file.read_text()):
        for before, after in (
            ("Case, Levels,", "Case, Levels, Tables,"),
            ('entity="user_id"', 'tables=["watched"], entity="user_id"'),
            ("(events: DataFrame)", "(events: DataFrame, tables: Tables)"),
            ("events.where", 'tables.join(events, "watched", how="inner").where'),
        ):
            assert before in text
            text = text.replace(before, after)
        file.write_text(text)
    table = TableFolder(job.settings, read_catalog(project).table("watched"))
    table.publish([RowVersion([user], 0, None) for user in users], datetime.now(UTC))


@pytest.mark.long
@pytest.mark.parametrize(
    ("resources", "what"),
    [
        ({"executors": 1, "cores": CORES + 1}, "needs 4 task slots at once; executors with 0 have registered"),
        (None, r"the Spark master at 127.0.0.1:\d+ cannot be reached"),
    ],
)
def test_a_job_waits_for_its_master_and_for_enough_slots(
    tmp_path: Path, broker: Broker, cluster: SparkCluster, resources: dict[str, int] | None, what: str
) -> None:
    master = cluster.master if resources else f"spark://127.0.0.1:{free_ports(1)[0]}"
    with detect_job(tmp_path, broker, master=master, resources=resources or {}) as job:
        job.make_topics()
        job.start()
        job.await_report(lambda r: r.state is JobState.WAITING and re.search(what, r.reason) is not None)


@pytest.mark.long
def test_resources_that_are_never_enough_are_a_fault_that_names_the_number(
    tmp_path: Path, broker: Broker, cluster: SparkCluster
) -> None:
    with detect_job(tmp_path, broker, master=cluster.master, resources=SMALL | {"executors": 1}) as job:
        job.make_topics()
        assert job.start().wait(patient(READY_SECONDS)) == 2
        wanted = "spark.resources: detector:failed_logins needs 4 task slots at once; 1 executor with 3 cores has 3"
        assert wanted in job.log.read_text()


@pytest.mark.long
def test_added_partitions_are_read_with_enough_slots_and_a_fault_that_names_the_number_without(
    tmp_path: Path, broker: Broker, cluster: SparkCluster
) -> None:
    with detect_job(tmp_path, broker, master=cluster.master, resources=SMALL) as job:
        live = LiveJob(job)
        live.await_live()
        with ticking(live.topic):
            live.topic.burst("before", 60)
            job.grow_to(4)  # and two tasks that count: all six slots
            live.topic.burst("new", 60, partition=3)
            job.await_truth(live.topic.truth)
            await_that(lambda: "partitions=4 slots=6" in job.log.read_text(), READY_SECONDS)
            live.topic.burst("later", 110, partition=2)
            job.await_truth(live.topic.truth)
            job.grow_to(5)
            live.topic.burst("too many", 60, partition=4)
            assert live.process.wait(patient(READY_SECONDS)) == 2
            wanted = "needs 7 task slots at once; 2 executors with 3 cores have 6"
            assert f"spark.resources: detector:failed_logins {wanted}" in job.log.read_text()
            more = ResourceSettings(executors=2, cores=4, memory=job.settings.spark.resources.memory)
            spark = job.settings.spark.model_copy(update={"resources": more})
            job.settings = job.settings.model_copy(update={"spark": spark})
            live.await_live()
            job.await_truth(live.topic.truth)
        live.stop()


@pytest.mark.long
def test_python_workers_run_the_code_of_the_job(tmp_path: Path, cluster: SparkCluster) -> None:
    command = [sys.executable, "-c", WHERE_FROM, str(tmp_path), cluster.master]
    environment = {"JAVA_HOME": str(find_java().home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(120), check=False)
    found = re.search("^found (.*)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stderr[-3000:]
    assert "tocsin.zip/tocsin/detect/stepper.py" in found[1]


@pytest.mark.long
def test_the_loss_of_any_part_of_a_cluster_loses_nothing_and_tells_nobody_twice(
    tmp_path: Path, broker: Broker, rounds: int
) -> None:
    with spark_cluster(tmp_path / "cluster") as cluster:
        losses, verdict = run(tmp_path / "far", broker, cluster, rounds or 1)
    told = "\n".join(str(loss) for loss in losses)
    assert not verdict.faults, "\n".join([told, *verdict.faults])
    assert verdict.findings > 20, "the load was too thin to prove anything"
    assert [loss.what for loss in losses if not loss.same_process] == ["driver"], told


@pytest.mark.long
def test_batches_on_the_cluster_are_exact_though_each_loses_a_worker(tmp_path: Path, cluster: SparkCluster) -> None:
    past = Past(day_before(datetime.now(UTC), 1), 1, 210_000, users=20_000, bursts=20)  # two tasks write it
    days = PastDays(tmp_path, past, cluster.master, **TWO_SMALL)
    dates = [f"--day={day}" for day in past.dates]
    _lose_worker(days, cluster, days.start("seal", "logins", *dates), _writes, UNREAD)
    _lose_worker(days, cluster, days.start("backfill", WINDOWED, STEPPED, *dates), _runs_python)
    days.check()


@pytest.mark.long
def test_batches_on_the_cluster_share_an_object_store_alone(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No executor sees the folder of the installation; keys and a profile that others use change nothing.

    Seal and backfill lose a worker, one of them by the command, one as Airflow submits it; a day is sealed on the
    cluster of Airflow's connection. A file is imported, a table of history and one in force are joined, today is read.
    """
    for name, value in {"PROFILE": OTHER_PROFILE, "ACCESS_KEY_ID": "stranger", "SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    first = day_before(datetime.now(UTC), 3)
    past = Past(first, 1, 210_000, users=20_000, bursts=20)  # two tasks write it
    here, second = tmp_path / "installation", first + timedelta(days=2)
    with (
        object_store(tmp_path) as server,
        running("postgres") as database,
        spark_cluster(tmp_path / "cluster", hidden=here) as cluster,
    ):
        (catalog := tmp_path / "catalog").write_text(database.address.replace("postgresql:", "postgresql+psycopg:"))
        store = HistoryStore(server.history_settings("team"), catalog)
        days = PastDays(here, past, cluster.master, store=store, **TWO_SMALL)
        known, other, *_ = sorted({user for user, _ in days.expected})
        file = _write_logins(tmp_path / "second.jsonl", begin(second), known, other, "stranger")

        _lose_worker(days, cluster, days.command("history", "seal", "--source=logins", f"--day={first}"), _writes)
        names = (WINDOWED, STEPPED)
        _lose_worker(days, cluster, days.submit("local[2]", "backfill", *names, f"--day={first}"), _runs_python)
        days.check()

        days.await_end(days.command("history", "import", "--source=logins", str(file)))
        with_master = days.settings
        days.settings = with_master.model_copy(update={"spark": SparkSettings()})
        days.await_end(days.submit(cluster.master, "seal", "logins", f"--day={second}"), UNREAD)
        days.settings = with_master
        _declare_joined(days, known, "stranger")
        chosen = (f"--from={second}", f"--to={second}", "--yes")
        days.await_end(days.command("backfill", "--detector=joined", *chosen))
        assert [(one.entity["user_id"], one.score) for one in days.findings("joined")] == [(known, 24)]

        prefix = {"topic_prefix": f"{tmp_path.name}."}
        days.settings = days.settings.model_copy(update={"kafka": broker.kafka.model_copy(update=prefix)})
        _fail_today(days, "somebody", 60)
        code, said = days.ask("parity", f"--detector={WINDOWED}", "--today", "--json")
        assert (code, json.loads(said)["batch"]) == (0, 1)
        assert server.wire.keys == {KEY}
        passing = FileSelector(f"{BUCKET}/team/scratch", recursive=True, allow_not_found=True)
        assert [one for one in server.files().get_file_info(passing) if one.type is FileType.File] == []


@pytest.mark.long
def test_what_airflow_submits_runs_on_the_cluster_of_its_connection_or_of_the_setting(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    past = Past(day_before(datetime.now(UTC), 2), 1, 60_000, users=5_000, bursts=20)
    days, before = PastDays(tmp_path, past), cluster.log("master").count("Launching executor")
    nowhere = free_ports(1)[0]
    assert days.submit(f"spark://127.0.0.1:{nowhere}", "seal", "logins").wait(patient(WORK_SECONDS)) == 1
    assert f"the Spark master at 127.0.0.1:{nowhere} cannot be reached: Connection refused" in days.said()
    days.await_end(days.submit(cluster.master, "seal", "logins"), UNREAD)
    settled = cluster.log("master").count("Launching executor")
    assert settled > before
    spark = SparkSettings.model_validate({"master": cluster.master, "resources": TWO_SMALL})
    days.settings = days.settings.model_copy(update={"spark": spark})
    days.await_end(days.submit("local[2]", "backfill", WINDOWED, STEPPED))
    assert cluster.log("master").count("Launching executor") >= settled + 2
    days.check()


def _lose_worker(
    days: PastDays,
    cluster: SparkCluster,
    run: subprocess.Popen[bytes],
    is_busy: Callable[[psutil.Process], bool],
    codes: Sequence[int] = GOOD,
) -> None:
    """Kill the first worker with an executor for which `is_busy`; `run` ends as it should. The worker comes again."""
    lost = days.executors_lost()
    await_that(lambda: cluster.busy_worker(is_busy) or run.poll() is not None, WORK_SECONDS, days.said, every=0.01)
    worker = cluster.busy_worker(is_busy) or "worker-0"
    cluster.kill(worker)
    days.await_end(run, codes)
    assert days.executors_lost() > lost, "it was not over when its worker was killed"
    cluster.start_worker(worker)


def _write_logins(file: Path, since: datetime, *users: str) -> Path:
    """Write a failed login of each of `users` in each hour of a day, as lines of their source."""
    times = [since + timedelta(hours=hour, minutes=30) for hour in range(24)]
    moments = [one.isoformat().replace("+00:00", "Z") for one in times]
    about = {"ip_address": "192.0.2.1", "action": "login failed"}
    lines = [json.dumps({"user_id": user, "timestamp": moment, **about}) for user in users for moment in moments]
    file.write_text("\n".join(lines))
    return file


def _declare_joined(days: PastDays, *watched: str) -> None:
    """Declare a detector that joins two tables: who failed in the day before yesterday, and `watched`, in force."""
    project = days.settings.project
    (project / "tables").mkdir()
    (project / "tables" / "watched.toml").write_text(WATCHED)
    (project / "tables" / "before.toml").write_text(BEFORE)
    (project / "detectors" / "joined.py").write_text(JOINED)
    table = TableFolder(days.settings, read_catalog(project).table("watched"))
    table.publish([RowVersion([user], 0, None) for user in watched], datetime.now(UTC))


def _fail_today(days: PastDays, user: str, count: int) -> None:
    """Write failed logins of now, and a tick by which their window has closed; there is an alerts DB."""
    ensure_topics(days.settings, read_catalog(days.settings.project))
    topic, now = Topic(days.settings), datetime.now(UTC)
    topic.burst(user, count, moment=now)
    topic.tick(now + timedelta(minutes=1))
    topic.flush()
    database = Database(days.settings.alerts_database)
    database.migrate()
    database.close()


def _writes(executor: psutil.Process) -> bool:
    """Return whether it has a file open that a task writes, or what waits on its disk to go to an object store."""
    return any("/_temporary/" in file.path or "/s3a-" in file.path for file in executor.open_files())


def _runs_python(executor: psutil.Process) -> bool:
    """Return whether it has a Python worker, which is forked from a process of its own."""
    return len(executor.children(recursive=True)) > 1


def _has_jar(executor: psutil.Process, job: DetectJob) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any(Path(executor.cwd()).glob("spark-sql-kafka-*.jar"))
    return False
