"""Detectors whose executors are pods: of a job outside the cluster, and of one that is a pod itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.past import Past, day_before
from tests.rig.broker import Broker, broker
from tests.rig.detect_job import JOB, READY_SECONDS, LiveJob, detect_job, ticking
from tests.rig.kube_client import PODS
from tests.rig.kube_server import KubeServer, kube_server, write_kubeconfig
from tests.rig.lost_executor import losing_an_executor
from tests.rig.past_days import STEPPED, WINDOWED, PastDays
from tests.rig.waiting import await_that, awaited
from tocsin.model.job_report import JobState
from tocsin.project.blocks.runner_settings import RunnerSettings
from tocsin.project.blocks.spark_settings import IMAGES, SparkSettings
from tocsin.project.setting_blocks import KafkaSettings
from tocsin.project.settings import Settings
from tocsin.provision.java import find_java
from tocsin.provision.paths import here
from tocsin.supervision.runners.cluster_manifests import SUPERVISOR
from tocsin.supervision.runners.cluster_runner import ClusterRunner
from tocsin.supervision.runners.job_command import job_launch
from tocsin.supervision.runners.process_labels import Labels, instance_of

__all__ = ["broker"]

pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")

IMAGE = "tocsin:1"
RUNNER = RunnerSettings(kind="kubernetes", image=IMAGE)
ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/tocsin/roles/tocsin-executors"
QUOTAS = "/api/v1/namespaces/tocsin/resourcequotas"
BACKEND = "KubernetesExecutorBackend"
SMALL = {"executors": 2, "cores": 3, "memory": "512 MB"}  # one executor alone has too few slots for the detector
SCRATCH = "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    folder = tmp_path_factory.mktemp("kubernetes")
    kafka = KafkaSettings(bootstrap_servers="kafka:9092")
    spark = SparkSettings(master="k8s://https://kubernetes.default.svc")
    settings = Settings(state=folder, instance="shop", kafka=kafka, runner=RUNNER, spark=spark)
    with kube_server(folder, settings) as one:
        one.node.images[IMAGE] = image(folder)
        yield one


def image(folder: Path) -> dict[str, str]:
    """What the Dockerfile sets: Java, Spark and the program `executor` on the PATH."""
    (folder / "bin").mkdir()
    (folder / "bin" / "executor").symlink_to(here().root / "src/tocsin/sparkjob/engine/executor.sh")
    spark = {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(here().package("pyspark"))}
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **spark}


@contextmanager
def outside(folder: Path, broker: Broker, server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveJob]:
    """A job on this machine, with the login of the account of jobs, at an address that pods reach."""
    write_kubeconfig(folder / "config.json", server.url, server.token_of(RUNNER.service_account))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config.json"))
    conf = {IMAGES[0]: IMAGE, "spark.kubernetes.namespace": "tocsin", SCRATCH: str(folder / "scratch")}
    place: dict[str, Any] = {"master": f"k8s://{server.url}", "driver_host": "127.0.0.2"}
    with detect_job(folder / "job", broker, **place, resources=SMALL, conf=conf) as job:
        try:
            yield LiveJob(job)
        finally:
            job.close()
            server.admin.ask("DELETE", PODS)
            await_that(lambda: server.admin.items(PODS) == [], 60)


def executors() -> list[psutil.Process]:
    return [
        one for one in psutil.process_iter(["cmdline"]) if any(BACKEND in word for word in one.info["cmdline"] or ())
    ]


def names(server: KubeServer) -> set[str]:
    return {pod["metadata"]["name"] for pod in server.admin.items(PODS)}


def test_a_job_outside_loses_an_executor_the_api_and_itself_and_finds_all(
    tmp_path: Path, broker: Broker, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its next start removes the pods that a killed driver leaves, which nobody owns outside a cluster."""
    with outside(tmp_path, broker, server, monkeypatch) as live:
        job, topic = live.job, live.topic
        with losing_an_executor(live, executors):
            pass
        with ticking(topic):
            with server.away():
                topic.burst("without API", 70)
                job.await_truth(topic.truth)
            left = names(server)
            job.kill(live.process)
            await_that(lambda: executors() == [], 60)
            assert names(server) == left, "nobody has removed them yet"
            topic.burst("after", 60)
            live.await_live()
            job.await_truth(topic.truth)
            assert len(executors()) == 2
            await_that(lambda: not left & names(server), 60)
        live.stop()
        await_that(lambda: names(server) == set(), 60)


def test_a_job_says_what_keeps_its_executors_away_until_nothing_does(
    tmp_path: Path, broker: Broker, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = server.admin.ask("GET", ROLE)["rules"]
    with outside(tmp_path, broker, server, monkeypatch) as live:

        def await_said(what: str) -> None:
            live.job.await_report(lambda r: r.state is JobState.WAITING and re.search(what, r.reason) is not None)

        server.admin.ask("PATCH", ROLE, {"rules": []})
        server.admin.ask("POST", QUOTAS, {"metadata": {"name": "full"}, "spec": {"hard": {"requests.memory": "0"}}})
        server.node.images[IMAGE], usual = None, server.node.images[IMAGE]
        server.node.is_full = True
        with server.away():
            live.start()
            await_said(r"the API of Kubernetes at 127.0.0.1:\d+ cannot be reached: Connection refused")
        await_said(r"no executors can be asked for: GET https://\S+/namespaces/tocsin/pods: Forbidden")
        server.admin.ask("PATCH", ROLE, {"rules": [{**rules[0], "verbs": [*{*rules[0]["verbs"]} - {"create"}]}]})
        await_said(r"executors with 0 have registered: POST \S+: pods is forbidden: .* cannot create resource \"pods\"")
        server.admin.ask("PATCH", ROLE, {"rules": rules})
        await_said("executors with 0 have registered: POST .* exceeded quota: full, requested: requests.memory")
        server.admin.ask("DELETE", f"{QUOTAS}/full")
        await_said("executors with 0 have registered: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu")
        server.node.is_full = False
        await_said(f'executors with 0 have registered: ImagePullBackOff: Back-off pulling image "{IMAGE}"')
        server.node.images[IMAGE] = usual
        live.await_live()
        live.stop()


def test_batches_with_executors_as_pods_are_exact(
    tmp_path: Path, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors read and write history, and run `step` in Python, with the code of the batch."""
    write_kubeconfig(tmp_path / "config.json", server.url, server.token_of(RUNNER.service_account))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config.json"))
    days = PastDays(tmp_path, Past(day_before(datetime.now(UTC), 1), 1, 60_000, users=5_000, bursts=20))
    conf = {IMAGES[0]: IMAGE, "spark.kubernetes.namespace": "tocsin", SCRATCH: str(tmp_path / "scratch")}
    spark: dict[str, Any] = {"master": f"k8s://{server.url}", "driver_host": "127.0.0.2", "conf": conf}
    spark["resources"] = {"executors": 2, "cores": 1, "memory": "512 MB"}
    days.settings = days.settings.model_copy(update={"spark": SparkSettings(**spark)})
    days.await_end(days.start("seal", "logins"))
    days.await_end(days.start("backfill", WINDOWED, STEPPED))
    days.check()
    await_that(lambda: names(server) == set(), 60)


def test_executors_go_with_the_pod_of_their_job(
    tmp_path: Path, broker: Broker, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings name neither an address of it nor an image: it tells its executors its own."""
    config = write_kubeconfig(tmp_path / "supervisor.json", server.url, server.token_of(SUPERVISOR))
    monkeypatch.setenv("KUBECONFIG", str(config))
    spark: dict[str, Any] = {"master": f"k8s://{server.url}", "conf": {SCRATCH: str(tmp_path / "scratch")}}
    with detect_job(tmp_path / "job", broker) as job:
        write_kubeconfig(tmp_path / "job.json", server.url, server.token_of(RUNNER.service_account))
        spark |= {"resources": SMALL, "trigger_seconds": 5}
        own = {"runner": RUNNER, "instance": "shop", "spark": SparkSettings(**spark)}
        job.settings = job.settings.model_copy(update=own)
        runner, topic = ClusterRunner(job.settings), job.make_topics()
        labels = Labels(instance_of(job.settings), JOB, "v1")
        launch = job_launch(job.settings, labels, find_java().home, memory_bytes=2_000_000_000)
        of_job = {**launch.environment, "KUBECONFIG": str(tmp_path / "job.json")}
        runner.start(replace(launch, environment=of_job))

        def is_live() -> bool:
            report = job.report()
            return report is not None and (report.mode, report.state) == ("real-time", JobState.RUNNING)

        assert awaited(is_live, READY_SECONDS), (runner.logs(JOB, 50), server.admin.items(PODS))
        with ticking(topic):
            topic.burst("one", 120)
            await_that(lambda: [one.score for one in job.findings().values()] == [120], READY_SECONDS)
        topic.truth.check(job.findings())
        pods = {pod["metadata"]["name"]: pod for pod in server.admin.items(PODS)}
        (driver,) = [name for name in pods if name.endswith("-a-0")]
        owned = [pod for name, pod in pods.items() if name != driver]
        assert [[one["name"] for one in pod["metadata"]["ownerReferences"]] for pod in owned] == [[driver]] * 2
        claims = [[one.get("persistentVolumeClaim") for one in pod["spec"]["volumes"]] for pod in owned]
        assert all({"claimName": RUNNER.state_claim} in claim for claim in claims)
        (process,) = runner.list()
        runner.stop(process, force=True)
        await_that(lambda: names(server) == set(), 60)
        assert executors() == []
