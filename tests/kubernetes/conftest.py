"""A real API server, of which the supervisor of an installation has an account."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.kube_server import SUPERVISOR, KubeServer, kube_server, write_kubeconfig
from tests.rig.waiting import await_that
from tocsin.declare.setting_blocks import KafkaSettings, RunnerSettings
from tocsin.declare.settings import Settings
from tocsin.supervise.runners.cluster_runner import ClusterRunner


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    if missing := [program for program in ("go", "etcd") if shutil.which(program) is None]:
        pytest.skip(f"{' and '.join(missing)} missing: make setup-k8s")
    folder = tmp_path_factory.mktemp("kubernetes")
    with kube_server(folder) as one:
        yield one


@pytest.fixture
def settings(tmp_path: Path, server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Of an installation whose account is in the environment; at the end none of its processes is left."""
    config = write_kubeconfig(tmp_path / "config.json", server.url, server.token_of(SUPERVISOR))
    monkeypatch.setenv("KUBECONFIG", str(config))
    state = tmp_path / "state"
    state.mkdir()
    runner = ClusterRunner(settings_at(state))
    assert runner.list() == []  # and is logged in
    yield settings_at(state)
    server.node.is_away = False
    for process in runner.list():
        runner.stop(process, force=True)
    await_that(lambda: not runner.list(), 60, lambda: server.log("kube-controller-manager")[-3000:])


def settings_at(state: Path) -> Settings:
    runner = RunnerSettings(kind="kubernetes", image="tocsin:1", secret="tocsin-secrets")
    return Settings(state=state, instance="shop", kafka=KafkaSettings(bootstrap_servers="kafka:9092"), runner=runner)
