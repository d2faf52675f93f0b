"""What a session on a cluster is given, and which failures are the loss of an executor."""

import socket
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.declare.blocks.spark_settings import ResourceSettings, SparkSettings
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.spark.engine import cluster
from tocsin.spark.engine.cluster import await_executor, has_lost_executor, refusal_of_masters, with_executors

OWN = {"spark.driver.extraClassPath": "/jars/a.jar:/jars/b.jar", "spark.ui.enabled": "false"}


MASTER = "spark://127.0.0.1:7077"


def session(*executors: str, stopped: bool = False) -> Any:
    ids = SimpleNamespace(mkString=lambda comma: comma.join(executors))
    context = SimpleNamespace(isStopped=lambda: stopped, getExecutorIds=lambda: ids)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context), master=MASTER))


def test_executors_get_the_connector_and_no_more_cores_than_the_job_is_to_have() -> None:
    options = with_executors(OWN, SparkSettings(conf={"spark.a": "b"}), ResourceSettings(executors=3, cores=2))
    assert options["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    stored = with_executors(OWN | {"spark.jars": "/s3/c.jar"}, SparkSettings(), ResourceSettings())
    assert stored["spark.jars"] == "/jars/a.jar,/jars/b.jar,/s3/c.jar"
    assert (options["spark.cores.max"], options["spark.executor.cores"], options["spark.a"]) == ("6", "2", "b")


@pytest.mark.parametrize("key", ["spark.ui.enabled", "spark.cores.max"])
def test_an_option_that_tocsin_sets_is_not_the_users(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"spark.conf: {key} is set by Tocsin; leave it out"):
        with_executors(OWN, SparkSettings(conf={key: "x"}), ResourceSettings())


def test_python_workers_get_all_modules_and_nothing_else(tmp_path: Path) -> None:
    sent: list[str] = []
    context = SimpleNamespace(addPyFile=sent.append, master=MASTER)
    cluster.begin(SimpleNamespace(sparkContext=context), tmp_path)  # type: ignore[arg-type]
    with zipfile.ZipFile(sent[0]) as archive:
        names = archive.namelist()
    assert {"tocsin/__init__.py", "tocsin/detect/stepper.py"} <= set(names)
    assert {name.rpartition(".")[2] for name in names} == {"py"}


def test_one_master_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.1", 0)) as gone:
        ports = [one.getsockname()[1] for one in (gone, here)]
        gone.close()
        both = f"spark://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        assert refusal_of_masters(SparkSettings(master=both)) is None
        told = refusal_of_masters(SparkSettings(master=f"spark://127.0.0.1:{ports[0]}"))
        of_api = refusal_of_masters(SparkSettings(master=f"k8s://https://127.0.0.1:{ports[0]}"))
    assert told == f"the Spark master at 127.0.0.1:{ports[0]} cannot be reached: Connection refused"
    assert of_api == f"the API of Kubernetes at 127.0.0.1:{ports[0]} cannot be reached: Connection refused"
    assert refusal_of_masters(SparkSettings()) is None


@pytest.mark.parametrize(
    ("now", "error", "lost"),
    [
        (session("0", "1"), "ExecutorLostFailure (executor 1 exited)", True),
        (session("0", "2"), "Connection to streaming shuffle writer 5 closed before termination", True),
        (session("0", "1", "2"), "Connection to streaming shuffle writer 5 closed before termination", False),
        (session("0", "1"), "division by zero", False),
        (session(stopped=True), "Job aborted", True),
    ],
)
def test_a_broken_connection_is_a_loss_only_if_an_executor_is_missing(
    monkeypatch: pytest.MonkeyPatch, now: Any, error: str, *, lost: bool
) -> None:
    monkeypatch.setattr(cluster, "_REMOVAL_SECONDS", 0.1)
    assert has_lost_executor(now, frozenset({"0", "1"}), error) is lost


def test_a_batch_begins_with_one_executor_and_says_what_a_cluster_without_room_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_ROOM_SECONDS", 0.1)
    full = SparkSettings(master=MASTER, resources=ResourceSettings(cores=3, memory=2**30))
    await_executor(session("0"), full)
    with pytest.raises(TransientError, match=r"it needs 3 free cores and 1024 MB for an executor; stop what fills it"):
        await_executor(session(), full)
    with pytest.raises(TransientError, match=rf"^{MASTER} gave no executor within 0 s: stop what fills it, or add a"):
        await_executor(session(), SparkSettings())  # where spark-submit names the cluster
