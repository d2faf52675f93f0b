import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes.client import ApiClient, Configuration

from tests.rig.cluster_contract import JOB, OBEDIENT, Cluster, ClusterContract
from tests.rig.kube_client import PODS
from tests.rig.played_kubernetes import PlayedKubernetes
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import JobState
from tocsin.project.blocks.runner_settings import RunnerSettings
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings, load_settings
from tocsin.supervision.job_kinds import desired_jobs
from tocsin.supervision.job_states import Start
from tocsin.supervision.runners.cluster_api import ClusterApi
from tocsin.supervision.runners.cluster_runner import ClusterRunner
from tocsin.supervision.runners.runner import Launch
from tocsin.supervision.supervisor import Charge, Supervisor


def settings_of(tmp_path: Path) -> Settings:
    state = tmp_path / "state"
    state.mkdir()
    return Settings(state=state, runner=RunnerSettings(kind="kubernetes", image="tocsin:1", timeout_seconds=2))


def runner_at(url: str, settings: Settings) -> ClusterRunner:
    configuration = Configuration(host=url)
    configuration.retries = False
    return ClusterRunner(settings, ClusterApi(settings.runner, ApiClient(configuration)))


@pytest.fixture
def played(tmp_path: Path) -> Iterator[PlayedKubernetes]:
    with PlayedKubernetes(tmp_path / "node") as one:
        yield one


@pytest.fixture
def cluster(tmp_path: Path, played: PlayedKubernetes) -> Cluster:
    def new_runner(settings: Settings) -> ClusterRunner:
        return runner_at(played.client.url, settings)

    return Cluster(played.client, settings_of(tmp_path), played.node, new_runner, played.refusing, played.away)


class TestPlayed(ClusterContract):
    """The contract, on an API in this process."""


def test_a_declared_memory_that_changes_rolls_the_pod(cluster: Cluster) -> None:
    project = cluster.folder / "project"
    copy_project(project)
    settings = cluster.settings.model_copy(update={"project": project})

    def launch(start: Start) -> Launch:
        return replace(cluster.launch(OBEDIENT, start.spec, start.job), memory_bytes=start.memory_bytes)

    supervisor = Supervisor(Charge(name="jobs", state=cluster.settings.state, launch=launch), cluster.runner)

    def limits() -> list[str]:
        """After one more look, in which each process says that it is ready."""
        supervisor.tick({JOB: desired_jobs(read_catalog(project), settings)[JOB]})
        running = cluster.runner.list()
        for process in running:
            ClusterContract()._says(cluster, process, JobState.READY, beside=process is not running[0])
        return [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in cluster.admin.items(PODS)]

    await_that(lambda: limits() == ["2515M"])
    file = project / "detectors" / "failed_logins.py"
    file.write_text(file.read_text().replace('stage="live"', 'stage="live", memory="900 MB"'))
    await_that(lambda: limits() == ["1125M"])


@pytest.mark.parametrize("answers", [True, False])
def test_an_api_that_is_away_or_silent_is_said_to_be(tmp_path: Path, answers: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if not answers:
            server.listen()  # it takes the connection, and says nothing
        runner = runner_at(f"http://127.0.0.1:{server.getsockname()[1]}", settings_of(tmp_path))
        with pytest.raises(TransientError, match="Kubernetes does not answer"):
            runner.list()


def test_without_a_login_the_fault_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"runner\.kind: no login to a Kubernetes cluster"):
        ClusterRunner(settings_of(tmp_path)).list()


def test_a_cluster_needs_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_RUNNER__KIND", "kubernetes")
    with pytest.raises(ConfigError, match="kind kubernetes also needs image"):
        load_settings(tmp_path)
