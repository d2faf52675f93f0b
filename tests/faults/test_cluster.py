"""Detectors whose tasks run on a standalone Spark cluster; the driver is the job, as without one.

The tests share a cluster. Only one test runs a whole installation: the last one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from bench.past import Past, day_before
from tests.faults.cluster_kills import run
from tests.rig.broker import Broker
from tests.rig.detect_job import JOB, READY_SECONDS, DetectJob, LiveJob, detect_job, ticking
from tests.rig.object_store import SECRET, object_store
from tests.rig.past_days import STEPPED, WINDOWED, PastDays
from tests.rig.spark_cluster import CORES, SparkCluster, spark_cluster
from tests.rig.waiting import await_that, patient
from tocsin.dev.servers.ports import free_ports
from tocsin.model.job_report import JobState
from tocsin.project.blocks.spark_settings import ResourceSettings, SparkSettings
from tocsin.provision.java import find_java
from tocsin.storage.job_folders import stored_folder
from tocsin.storage.s3a import CREDENTIALS

TWO_SMALL = {"executors": 2, "cores": 1, "memory": "512 MB"}
WORK_SECONDS = 120.0
SMALL = {"executors": 2, "cores": 3, "memory": "512 MB"}  # one executor alone has too few slots for the detector
WHERE_FROM = """
import sys
from pathlib import Path
from tocsin.project.blocks.spark_settings import SparkSettings
from tocsin.project.settings import Settings
from tocsin.sparkjob.session import clean_scratch, streaming_session

spark = SparkSettings(master=sys.argv[2], archive=False)
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


@contextmanager
def losing_an_executor(live: LiveJob, cluster: SparkCluster) -> Iterator[list[psutil.Process]]:
    """Kill one of the executors behind the block, in mid-window: all is found, and the process stays the same."""
    live.await_live()
    with ticking(live.topic):
        live.topic.burst("before", 120)
        live.topic.burst("other", 60, partition=1)
        live.job.await_truth(live.topic.truth)
        yield (executors := cluster.executors())
        live.topic.burst("during", 40)
        live.await_live()
        executors[0].kill()
        live.topic.burst("during", 80)
        live.job.await_truth(live.topic.truth)
        counted = live.job.await_report(lambda r: r.counts.get("executors_lost") == 1)
    assert counted.pid == live.process.pid


@pytest.mark.long
def test_a_query_that_loses_an_executor_starts_again_in_the_same_process(
    tmp_path: Path, broker: Broker, cluster: SparkCluster
) -> None:
    with detect_job(tmp_path, broker, master=cluster.master, resources=SMALL) as job:
        live = LiveJob(job)
        with losing_an_executor(live, cluster) as executors:
            assert len(executors) == 2
            assert all(_has_jar(one, job) for one in executors), "the connector came with the job"
        live.stop()


@pytest.mark.long
def test_executors_use_an_object_store_and_its_key_stands_in_its_file_alone(
    tmp_path: Path, broker: Broker, cluster: SparkCluster
) -> None:
    (events := tmp_path / "spark-events").mkdir()
    logged = {"enabled": "true", "dir": events.as_uri(), "compress": "false"}
    conf = {f"spark.eventLog.{key}": value for key, value in logged.items()}
    with (
        object_store(tmp_path) as server,
        detect_job(tmp_path, broker, server.settings("team"), master=cluster.master, resources=SMALL, conf=conf) as job,
    ):
        live = LiveJob(job)
        with losing_an_executor(live, cluster) as executors:
            committed = job.committed_batches()
            await_that(lambda: job.committed_batches() > committed, READY_SECONDS)
            assert not [one.pid for one in executors if SECRET in " ".join([*one.cmdline(), *one.environ().values()])]
        assert [*stored_folder(job.settings, JOB).glob("*/query/state/*")]
        live.stop()
        files = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        assert [one for one, content in files.items() if SECRET.encode() in content] == [server.credentials]
        assert any(one.is_relative_to(events) and CREDENTIALS.encode() in content for one, content in files.items())


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
def test_the_loss_of_any_part_of_a_cluster_loses_nothing_and_tells_nobody_twice(tmp_path: Path, broker: Broker) -> None:
    with spark_cluster(tmp_path / "cluster") as cluster:
        losses, verdict = run(tmp_path / "far", broker, cluster)
    told = "\n".join(str(loss) for loss in losses)
    assert not verdict.faults, "\n".join([told, *verdict.faults])
    assert verdict.findings > 20, "the load was too thin to prove anything"
    assert [loss.what for loss in losses if not loss.same_process] == ["driver"], told


@pytest.mark.long
def test_batches_on_the_cluster_are_exact_though_each_loses_a_worker(tmp_path: Path, cluster: SparkCluster) -> None:
    past = Past(day_before(datetime.now(UTC), 1), 1, 210_000, users=20_000, bursts=20)  # two tasks write it
    days = PastDays(tmp_path, past, cluster.master, **TWO_SMALL)
    dates = [f"--day={day}" for day in past.dates]
    for program, *names in (("seal", "logins"), ("backfill", WINDOWED, STEPPED)):
        is_busy, lost = {"seal": _writes, "backfill": _runs_python}[program], days.executors_lost()
        run = days.start(program, *names, *dates)
        await_that(lambda: cluster.busy_worker(is_busy) or run.poll() is not None, WORK_SECONDS, days.said, every=0.01)  # noqa: B023
        worker = cluster.busy_worker(is_busy) or "worker-0"
        cluster.kill(worker)
        days.await_end(run)
        assert days.executors_lost() > lost, "it was not over when its worker was killed"
        cluster.start_worker(worker)
    _check(days)


@pytest.mark.long
def test_what_airflow_submits_runs_on_the_cluster_of_its_connection_or_of_the_setting(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    past = Past(day_before(datetime.now(UTC), 1), 1, 60_000, users=5_000, bursts=20)
    days, before = PastDays(tmp_path, past), cluster.log("master").count("Launching executor")
    nowhere = free_ports(1)[0]
    assert days.submit(f"spark://127.0.0.1:{nowhere}", "seal", "logins").wait(patient(WORK_SECONDS)) == 1
    assert f"the Spark master at 127.0.0.1:{nowhere} cannot be reached: Connection refused" in days.said()
    days.await_end(days.submit(cluster.master, "seal", "logins"))
    settled = cluster.log("master").count("Launching executor")
    assert settled > before
    spark = SparkSettings.model_validate({"master": cluster.master, "resources": TWO_SMALL})
    days.settings = days.settings.model_copy(update={"spark": spark})
    days.await_end(days.submit("local[2]", "backfill", WINDOWED, STEPPED))
    assert cluster.log("master").count("Launching executor") >= settled + 2
    _check(days)


def _check(days: PastDays) -> None:
    """Compare what is sealed and what is found with what happened."""
    assert days.sealed() == days.true_rows()
    assert {(one.entity["user_id"], one.window_start): one.score for one in days.findings(WINDOWED)} == days.expected
    assert sorted((one.entity["user_id"], one.moment) for one in days.findings(STEPPED)) == days.quick_failures() != []


def _writes(executor: psutil.Process) -> bool:
    return any("/_temporary/" in file.path for file in executor.open_files())


def _runs_python(executor: psutil.Process) -> bool:
    """Return whether it has a Python worker, which is forked from a process of its own."""
    return len(executor.children(recursive=True)) > 1


def _has_jar(executor: psutil.Process, job: DetectJob) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any(Path(executor.cwd()).glob("spark-sql-kafka-*.jar"))
    return False
