"""The runner, and docs/run/kubernetes.yaml, on a real API server and its controllers; only the node is played."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.rig.kube_client import PODS, SETS, KubeClient, Refused, collection_of
from tests.rig.kube_server import SUPERVISOR, KubeServer, read_manifests, write_kubeconfig
from tests.rig.waiting import await_that
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.setting_blocks import JOB_ACCOUNT, PodSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import beat
from tocsin.supervise.job_states import Condition, Desired, Start, Timing
from tocsin.supervise.runners.cluster_runner import ClusterRunner, Slot, slot_names, stateful_set
from tocsin.supervise.runners.runner import Labels, Launch, Process, instance_of
from tocsin.supervise.supervisor import JobGroup, Supervisor

pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
JOB = "detector:failed_logins"
QUOTAS = "/api/v1/namespaces/tocsin/resourcequotas"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/tocsin/roles/{SUPERVISOR}"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
OBEDIENT = """
import os, signal, sys, time
def leave(*_):
    print("last words", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print(os.environ["TOCSIN_PROCESS"], "up", flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
ENDING = "print('it broke'); exit(7)"


@dataclass
class Cluster:
    """The runner and the supervisor of one installation, which run programs of Python by their names."""

    settings: Settings
    server: KubeServer

    def __post_init__(self) -> None:
        self.runner, self.codes = ClusterRunner(self.settings), {"v1": OBEDIENT, "v2": OBEDIENT}
        timing = Timing(crash_loop_failures=2, stop_grace=5.0)
        group = JobGroup(name="jobs", state=self.settings.state, launch=self._start, timing=timing)
        self.supervisor = Supervisor(group, self.runner)

    def launch(self, code: str, spec: str = "v1", job: str = JOB) -> Launch:
        labels = Labels(instance_of(self.settings), job, spec)
        command = (sys.executable, "-c", code, *labels.arguments())
        environment = {"PATH": "/usr/bin:/bin"}
        return Launch(
            labels=labels, command=command, environment=environment, directory=self.settings.state,
            log=self.settings.log(job), memory_bytes=100_000_000,
        )  # fmt: skip

    def start(self, code: str) -> Process:
        """Start a job, and wait until it is up."""
        pid = self.runner.start(self.launch(code))
        self.await_log("up")
        return next(one for one in self.runner.list() if one.pid == pid)

    def await_log(self, word: str) -> None:
        await_that(lambda: any(word in line for line in self.runner.logs(JOB, 1)), 60)

    def await_running(self, *specs: str, **desired: Any) -> None:
        """Look as a supervisor that is to run the last of `specs`, until these run."""
        wanted = {JOB: Desired(specs[-1], **desired)} if specs else {}
        self.await_look(wanted, lambda: sorted(one.labels.spec for one in self.runner.list()) == [*specs])

    def await_look(self, wanted: dict[str, Desired], done: Callable[[], bool]) -> None:
        def look() -> bool:
            self.supervisor.tick(wanted)
            return done()

        await_that(look, 60, lambda: f"{self.runner.list()} {self.supervisor.pasts()}", every=0.2)

    def report(self, process: Process, state: JobState, *, beside: bool = False) -> None:
        report = JobReport(job=JOB, instance="x", pid=process.pid, state=state, at=datetime.now(UTC))
        beat(self.settings.state, report, beside=beside)

    def _start(self, start: Start) -> Launch:
        return self.launch(self.codes[start.spec], start.spec, start.job)


@pytest.fixture
def cluster(settings: Settings, server: KubeServer) -> Cluster:
    return Cluster(settings, server)


def test_one_that_is_asked_ends_in_time_and_is_started_again_by_its_name(cluster: Cluster) -> None:
    process = cluster.start(OBEDIENT)
    assert cluster.runner.logs(JOB, 1) == [f"{process.pid} up"]
    assert ClusterRunner(cluster.settings.model_copy(update={"instance": "other"})).list() == []
    cluster.runner.stop(process)
    await_that(lambda: not cluster.runner.list(), 60)
    (made,) = cluster.server.admin.items(SETS)
    assert made["spec"]["replicas"] == 0
    again = cluster.start(OBEDIENT)
    assert again.pid != process.pid
    assert [one["metadata"]["name"] for one in cluster.server.admin.items(SETS)] == [made["metadata"]["name"]]


def test_a_deaf_one_is_ended_by_force(cluster: Cluster) -> None:
    process = cluster.start(DEAF)
    cluster.runner.stop(process)
    assert [one.pid for one in cluster.runner.list()] == [process.pid]
    cluster.runner.stop(process, force=True)
    await_that(lambda: not cluster.runner.list(), 20)


def test_one_that_ends_by_itself_is_restarted_by_its_node_and_people_hear_of_it(cluster: Cluster) -> None:
    cluster.codes["v2"] = ENDING
    cluster.await_running("v1", beats=False)
    failing = {JOB: Desired("v2", beats=False)}
    cluster.await_look(failing, lambda: cluster.supervisor.pasts()[JOB].condition is Condition.CRASH_LOOP)
    assert "exit code 7" in cluster.supervisor.pasts()[JOB].reason
    (process,) = cluster.runner.list()
    cluster.await_look(failing, lambda: (cluster.runner.list()[0].restarts or 0) > 3)
    assert [one.pid for one in cluster.runner.list()] == [process.pid], "supervision has started none"
    assert {*cluster.runner.logs(JOB, 2)} == {"it broke"}
    cluster.await_running("v1", beats=False)
    cluster.await_log("up")
    cluster.await_running()


def test_an_evicted_pod_comes_again_and_is_no_failure(cluster: Cluster) -> None:
    cluster.await_running("v1", beats=False)
    cluster.await_log("up")
    (pod,) = cluster.server.admin.items(PODS)
    cluster.server.node.evict(pod)

    def is_replaced() -> bool:
        pods = cluster.server.admin.items(PODS)
        assert len(pods) <= 1
        return {one["metadata"]["uid"] for one in pods} - {pod["metadata"]["uid"]} != set()

    cluster.await_look({JOB: Desired("v1", beats=False)}, is_replaced)
    cluster.await_log("up")
    assert cluster.supervisor.pasts()[JOB].failures == ()


def test_a_hand_over_runs_both_until_the_new_one_is_ready(cluster: Cluster) -> None:
    cluster.await_running("v1", hands_over=True)
    cluster.await_log("up")
    (old,) = cluster.runner.list()
    cluster.report(old, JobState.RUNNING)
    cluster.await_running("v1", "v2", hands_over=True)
    (new,) = (one for one in cluster.runner.list() if one.pid != old.pid)
    cluster.report(new, JobState.READY, beside=True)
    cluster.await_running("v2", hands_over=True)
    assert [one.pid for one in cluster.runner.list()] == [new.pid]


@pytest.mark.parametrize("plural", ["statefulsets", "pods"])
def test_a_right_that_is_lost_and_comes_back_costs_no_process(cluster: Cluster, plural: str) -> None:
    cluster.await_running("v1", beats=False)
    before = [one.pid for one in cluster.runner.list()]
    with refusing(cluster.server, "list", plural):
        with pytest.raises(TransientError, match=rf"403 {plural}[.a-z]* is forbidden"):
            cluster.runner.list()
        for wanted in ({JOB: Desired("v2", beats=False)}, {}):
            assert cluster.supervisor.tick(wanted) == [], "what runs is not known, so nothing is stopped or started"
    assert [one.pid for one in cluster.runner.list()] == before
    cluster.await_running("v2", beats=False)


def test_an_api_that_dies_and_comes_back_costs_no_process(cluster: Cluster) -> None:
    cluster.await_running("v1", beats=False)
    cluster.await_log("up")
    before = [one.pid for one in cluster.runner.list()]
    with cluster.server.away():
        with pytest.raises(TransientError, match="Kubernetes does not answer"):
            cluster.runner.list()
        assert cluster.supervisor.tick({}) == []
    cluster.supervisor.tick({JOB: Desired("v1", beats=False)})
    assert [one.pid for one in cluster.runner.list()] == before
    assert cluster.supervisor.pasts()[JOB].failures == ()


def test_a_silent_node_holds_the_place_of_its_process(cluster: Cluster) -> None:
    cluster.await_running("v1", beats=False)
    cluster.await_log("up")
    cluster.server.node.is_away = True
    cluster.supervisor.tick({})
    assert [one.labels.spec for one in cluster.runner.list()] == ["v1"]
    cluster.supervisor.tick({JOB: Desired("v2", beats=False)})
    assert [one.labels.spec for one in cluster.runner.list()] == ["v1"], "it may still run"
    cluster.server.node.is_away = False
    cluster.await_running("v2", beats=False)


def test_a_quota_keeps_a_process_without_a_pod_until_there_is_room(cluster: Cluster) -> None:
    with quota(cluster.server.admin, "requests.memory"):
        pid = cluster.runner.start(cluster.launch(OBEDIENT))
        assert [(one.pid, one.restarts) for one in cluster.runner.list()] == [(pid, None)]
        assert cluster.server.admin.items(PODS) == []
    await_that(lambda: cluster.runner.logs(JOB, 1) == [f"{pid} up"], 90)


def test_the_account_of_jobs_may_do_nothing(cluster: Cluster, tmp_path: Path) -> None:
    account = JOB_ACCOUNT
    write_kubeconfig(tmp_path / "config.json", cluster.server.url, cluster.server.token_of(account))
    with pytest.raises(OSError, match=r"403 statefulsets\.apps is forbidden: .*tocsin-job"):
        ClusterRunner(cluster.settings).list()


def test_the_account_of_the_supervisor_reads_no_secret(server: KubeServer) -> None:
    with pytest.raises(Refused) as refused:
        KubeClient(server.url, server.token_of(SUPERVISOR)).ask("GET", "/api/v1/namespaces/tocsin/secrets")
    assert refused.value.status == 403


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("asked", [{}, {"cpu": "1.5", "memory_mb": 5000}], ids=["usual", "asked"])
def test_the_server_takes_the_pod_of_each_kind_of_job(cluster: Cluster, kind: str, asked: dict[str, Any]) -> None:
    """Its validation compares requests with limits, which no schema does; and pods keep the restricted standard."""
    runner = cluster.settings.runner.model_copy(update={"pods": {kind: PodSettings(**asked)}})
    settings, launch = cluster.settings.model_copy(update={"runner": runner}), cluster.launch(OBEDIENT, job=kind)
    made = stateful_set(launch, settings, Slot(name=slot_names(launch.labels)[0], number=1, at=1.5))
    pod = {"apiVersion": "v1", "kind": "Pod", **made["spec"]["template"]}
    for one in (made, pod):
        inside = {**one, "metadata": {"name": "dry", **one["metadata"], "namespace": "tocsin"}}
        cluster.server.admin.ask("POST", f"{collection_of(inside)}?dryRun=All&fieldValidation=Strict", inside)


def test_what_is_to_be_applied_is_applied_whole_and_again_without_a_change(server: KubeServer) -> None:
    manifests = json.loads(json.dumps(read_manifests()).replace('"tocsin"}', '"whole"}'))  # a namespace of its own

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


@contextmanager
def quota(admin: KubeClient, of: str) -> Iterator[None]:
    """Allow no `of` in the namespace, once the quota is in force."""
    admin.ask("POST", QUOTAS, {"metadata": {"name": "full"}, "spec": {"hard": {of: "0"}}})
    await_that(lambda: of in admin.ask("GET", f"{QUOTAS}/full").get("status", {}).get("used", {}))
    try:
        yield
    finally:
        admin.ask("DELETE", f"{QUOTAS}/full")
