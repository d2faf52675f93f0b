"""The runner on a real API server and its controllers; only the node is played. `make test-k8s` runs it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cluster_contract import SLEEP, Cluster, ClusterContract
from tests.rig.kube_client import KubeClient, Refused
from tests.rig.kube_server import KubeServer, build, write_kubeconfig
from tests.rig.waiting import await_that
from tocsin.project.blocks.runner_settings import RunnerSettings
from tocsin.project.setting_blocks import KafkaSettings
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.runners.cluster_manifests import SUPERVISOR, manifests, rights
from tocsin.supervision.runners.cluster_runner import ClusterRunner

RUNNER = RunnerSettings(kind="kubernetes", image="tocsin:1", secret="tocsin-secrets")
GROUP = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/tocsin/serviceaccounts",
    "Role": f"{GROUP}/namespaces/tocsin/roles",
    "RoleBinding": f"{GROUP}/namespaces/tocsin/rolebindings",
    "ConfigMap": "/api/v1/namespaces/tocsin/configmaps",
    "PersistentVolumeClaim": "/api/v1/namespaces/tocsin/persistentvolumeclaims",
    "StatefulSet": "/apis/apps/v1/namespaces/tocsin/statefulsets",
}


def installed_at(state: Path) -> Settings:
    kafka = KafkaSettings(bootstrap_servers="kafka:9092")
    return Settings(state=state, instance="shop", kafka=kafka, runner=RUNNER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    programs = here().root / ".tocsin" / "kubernetes"
    build(programs)
    folder = tmp_path_factory.mktemp("kubernetes")
    with KubeServer(programs, folder / "server") as one:
        one.admin.ask("POST", PATHS["Namespace"], {"metadata": {"name": "tocsin"}})
        for manifest in rights(installed_at(folder)):
            one.admin.ask("POST", PATHS[manifest["kind"]], manifest)
        yield one


def token_of(server: KubeServer, account: str) -> str:
    asked = server.admin.ask("POST", f"{PATHS['ServiceAccount']}/{account}/token", {"spec": {}})
    return str(asked["status"]["token"])


@pytest.fixture
def cluster(tmp_path: Path, server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    config = write_kubeconfig(tmp_path / "config.json", server.url, token_of(server, SUPERVISOR))
    monkeypatch.setenv("KUBECONFIG", str(config))
    state = tmp_path / "state"
    state.mkdir()
    one = Cluster(server.admin, installed_at(state), server.node, ClusterRunner)
    yield one
    server.node.is_away = False
    for process in one.runner.list():
        one.runner.stop(process, force=True)
    await_that(lambda: one.names() == [], 60, lambda: f"{one.names()}\n{server.log('kube-controller-manager')[-3000:]}")


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
class TestReal(ClusterContract):
    """The contract, with the rights that `tocsin k8s render` gives the supervisor."""

    def test_the_account_of_jobs_may_do_nothing(self, cluster: Cluster, server: KubeServer, tmp_path: Path) -> None:
        assert cluster.runner.list() == []
        write_kubeconfig(tmp_path / "config.json", server.url, token_of(server, RUNNER.service_account))
        runner = ClusterRunner(cluster.settings)
        with pytest.raises(OSError, match=r"403 statefulsets\.apps is forbidden: .*tocsin-job"):
            runner.start(cluster.launch(SLEEP))

    def test_the_account_of_the_supervisor_reads_no_secret(self, server: KubeServer) -> None:
        client = KubeClient(server.url, token_of(server, SUPERVISOR))
        with pytest.raises(Refused) as refused:
            client.ask("GET", "/api/v1/namespaces/tocsin/secrets")
        assert refused.value.status == 403


def test_the_server_takes_every_rendered_manifest_to_the_letter(server: KubeServer, tmp_path: Path) -> None:
    for manifest in manifests(installed_at(tmp_path)):
        kept: dict[str, Any] = {
            **manifest,
            "metadata": {**manifest["metadata"], "name": f"dry-{manifest['kind'].lower()}"},
        }
        server.admin.ask("POST", f"{PATHS[manifest['kind']]}?dryRun=All&fieldValidation=Strict", kept)
