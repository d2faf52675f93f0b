"""The runner on a real API server and its controllers; only the node is played."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call

from tests.rig.cluster_contract import SLEEP, Cluster, ClusterContract
from tests.rig.kube_client import PODS, SETS, KubeClient, Refused, collection_of
from tests.rig.kube_server import KubeServer, kube_server, write_kubeconfig
from tests.rig.waiting import await_that
from tocsin.project.blocks.kafka_login import OPERATOR, ROLES
from tocsin.project.blocks.runner_settings import PodSettings, RunnerSettings
from tocsin.project.setting_blocks import KafkaSettings
from tocsin.project.settings import Settings
from tocsin.supervision.runners.cluster_manifests import SUPERVISOR
from tocsin.supervision.runners.cluster_runner import ClusterRunner
from tocsin.supervision.runners.job_pod import Slot, objects_of, slot_names

pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
RUNNER = RunnerSettings(kind="kubernetes", image="tocsin:1", secret="tocsin-secrets")
QUOTAS = "/api/v1/namespaces/tocsin/resourcequotas"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/tocsin/roles/{SUPERVISOR}"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KINDS = sorted({*ROLES} - {OPERATOR})


def installed_at(state: Path) -> Settings:
    kafka = KafkaSettings(bootstrap_servers="kafka:9092")
    return Settings(state=state, instance="shop", kafka=kafka, runner=RUNNER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    if missing := [program for program in ("go", "etcd") if shutil.which(program) is None]:
        pytest.skip(f"{' and '.join(missing)} missing: make setup-k8s")
    folder = tmp_path_factory.mktemp("kubernetes")
    with kube_server(folder, installed_at(folder)) as one:
        yield one


@contextmanager
def refusing(server: KubeServer, verb: str, plural: str) -> Iterator[None]:
    """Take a right out of the supervisor's role, and wait until the API has heard of that."""
    rules = server.admin.ask("GET", ROLE)["rules"]
    fewer = [
        {**rule, "resources": [kind], "verbs": [one for one in rule["verbs"] if (one, kind) != (verb, plural)]}
        for rule in rules
        for kind in rule["resources"]
    ]
    user = f"system:serviceaccount:tocsin:{SUPERVISOR}"
    what = {"namespace": "tocsin", "verb": verb, "resource": plural, "group": "apps" if plural in SETS else ""}

    def put(wanted: list[Any], *, allowed: bool) -> None:
        server.admin.ask("PATCH", ROLE, {"rules": wanted})
        review = {"spec": {"user": user, "resourceAttributes": what}}
        await_that(lambda: server.admin.ask("POST", REVIEWS, review)["status"]["allowed"] is allowed)

    put([rule for rule in fewer if rule["verbs"]], allowed=False)
    try:
        yield
    finally:
        put(rules, allowed=True)


@pytest.fixture
def cluster(tmp_path: Path, server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    config = write_kubeconfig(tmp_path / "config.json", server.url, server.token_of(SUPERVISOR))
    monkeypatch.setenv("KUBECONFIG", str(config))
    state = tmp_path / "state"
    state.mkdir()
    one = Cluster(
        server.admin,
        installed_at(state),
        server.node,
        ClusterRunner,
        lambda verb, plural: refusing(server, verb, plural),
        server.away,
    )
    yield one
    server.node.is_away = False
    for process in one.runner.list():
        one.runner.stop(process, force=True)
    await_that(lambda: one.names() == [], 60, lambda: f"{one.names()}\n{server.log('kube-controller-manager')[-3000:]}")


class TestReal(ClusterContract):
    """The contract, with the rights that `tocsin k8s render` gives the supervisor."""

    def test_the_account_of_jobs_may_do_nothing(self, cluster: Cluster, server: KubeServer, tmp_path: Path) -> None:
        assert cluster.runner.list() == []
        write_kubeconfig(tmp_path / "config.json", server.url, server.token_of(RUNNER.service_account))
        runner = ClusterRunner(cluster.settings)
        with pytest.raises(OSError, match=r"403 statefulsets\.apps is forbidden: .*tocsin-job"):
            runner.start(cluster.launch(SLEEP))

    def test_the_account_of_the_supervisor_reads_no_secret(self, server: KubeServer) -> None:
        client = KubeClient(server.url, server.token_of(SUPERVISOR))
        with pytest.raises(Refused) as refused:
            client.ask("GET", "/api/v1/namespaces/tocsin/secrets")
        assert refused.value.status == 403

    def test_a_quota_of_stateful_sets_refuses_a_start(self, cluster: Cluster) -> None:
        with quota(cluster.admin, "count/statefulsets.apps"):
            with pytest.raises(OSError, match=r"403 statefulsets\.apps .* is forbidden: exceeded quota: full"):
                cluster.runner.start(cluster.launch(SLEEP))
            assert cluster.names() == []

    def test_a_quota_of_memory_leaves_a_process_without_a_pod_until_there_is_room(self, cluster: Cluster) -> None:
        with quota(cluster.admin, "requests.memory"):
            pid = cluster.runner.start(cluster.launch(SLEEP))
            (made,) = cluster.admin.items(SETS)
            await_that(lambda: reasons(cluster, made) == {"FailedCreate"}, 30)
            assert [(one.pid, one.leader) for one in cluster.runner.list()] == [(pid, True)]
            assert cluster.admin.items(PODS) == []
        await_that(lambda: cluster.runner.logs("detector:failed_logins", 1) == ["up"], 90)


@contextmanager
def quota(admin: KubeClient, of: str) -> Iterator[None]:
    """Allow no `of` in the namespace, once the quota is in force."""
    admin.ask("POST", QUOTAS, {"metadata": {"name": "full"}, "spec": {"hard": {of: "0"}}})
    await_that(lambda: of in admin.ask("GET", f"{QUOTAS}/full").get("status", {}).get("used", {}))
    try:
        yield
    finally:
        admin.ask("DELETE", f"{QUOTAS}/full")


def reasons(cluster: Cluster, made: Any) -> set[str]:
    """Name what the events of a StatefulSet say, as `kubectl describe` shows them."""
    events = cluster.admin.items("/api/v1/namespaces/tocsin/events")
    return {event["reason"] for event in events if event["involvedObject"].get("uid") == made["metadata"]["uid"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", [{}, {"cpu": "1.5", "memory_mb": 5000}], ids=["usual", "asked"])
def test_the_server_takes_the_objects_of_each_kind_of_job(cluster: Cluster, kind: str, asked: dict[str, Any]) -> None:
    """Its validation compares requests with limits, which no schema does; and pods keep the restricted standard."""
    runner = RUNNER.model_copy(update={"pods": {kind: PodSettings(**asked)}})
    settings = cluster.settings.model_copy(update={"runner": runner})
    launch = cluster.launch(SLEEP, job=kind)
    objects = objects_of(launch, settings, Slot(name=slot_names(launch.labels)[0], number=1))
    template = objects.stateful_set["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "dry"}}
    for one in (objects.stateful_set, objects.environment, objects.secrets, pod):
        inside = {**one, "metadata": {**one["metadata"], "namespace": "tocsin"}}
        cluster.admin.ask("POST", f"{collection_of(inside)}?dryRun=All&fieldValidation=Strict", inside)


def test_what_the_command_prints_is_applied_whole_and_again_without_a_change(
    server: KubeServer, tmp_path: Path
) -> None:
    lines = ['instance = "shop"', "[kafka]", 'bootstrap_servers = "kafka:9092"', "[runner]", 'kind = "kubernetes"']
    lines += ['namespace = "whole"', 'image = "tocsin:1"', "[runner.pods.supervisor]", 'cpu = "500m"']
    lines += ["[drain]", 'host = "0.0.0.0"', 'certificate_file = "drain.pem"', 'key_file = "drain.key"']
    (tmp_path / "tocsin.toml").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "tocsin.cli", "k8s", "render", "--storage-class", "nfs"]
    printed = subprocess.run(command, stdout=-1, check=True, env={**os.environ, "TOCSIN_PROJECT": str(tmp_path)})
    manifests = list(yaml.safe_load_all(printed.stdout))
    assert "Service" in {manifest["kind"] for manifest in manifests}

    def versions(answers: Iterable[Any]) -> list[str]:
        return [answer["metadata"]["resourceVersion"] for answer in answers]

    for dry in (False, True):
        made = [server.admin.apply(manifest, dry=dry) for manifest in manifests]
    pods = "/api/v1/namespaces/whole/pods"
    await_that(lambda: [pod["metadata"]["name"] for pod in server.admin.items(pods)] == [f"{SUPERVISOR}-0"])
    paths = [f"{collection_of(manifest)}/{manifest['metadata']['name']}" for manifest in manifests]

    def is_unchanged() -> bool:
        """Apply all again; what the controllers write in the meantime is no change of ours."""
        before = versions(server.admin.ask("GET", path) for path in paths)
        return before == versions(map(server.admin.apply, manifests))

    await_that(is_unchanged)
    assert made[-1]["metadata"]["generation"] == 1
