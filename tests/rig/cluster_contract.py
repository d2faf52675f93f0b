"""What the runner of a cluster promises, tried on a played API in unit tests and on a real one in tests/kubernetes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.rig.kube_client import CONFIG_MAPS, PODS, SECRETS, SETS, KubeClient
from tests.rig.played_node import PlayedNode
from tests.rig.waiting import await_that
from tocsin.model.errors import TransientError
from tocsin.model.job_report import JobReport, JobState
from tocsin.project.settings import Settings
from tocsin.runtime.heartbeat import beat
from tocsin.supervision.job_states import Condition, Desired, Pace, Start
from tocsin.supervision.runners import cluster_api
from tocsin.supervision.runners.cluster_api import ClusterApi, Kind, Object
from tocsin.supervision.runners.cluster_runner import ClusterRunner
from tocsin.supervision.runners.job_pod import Slot, objects_of, slot_names
from tocsin.supervision.runners.process_labels import Labels, instance_of
from tocsin.supervision.runners.runner import Launch, Process
from tocsin.supervision.supervisor import Charge, Supervisor

JOB = "detector:failed_logins"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
OBEDIENT = """
import signal, sys, time
def leave(*_):
    print("last words", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
# A job whose container is started again in its pod would count on.
ENDING = (
    "import pathlib, sys; print('it broke'); file = pathlib.Path('runs'); "
    "file.write_text(file.read_text() + 'x' if file.exists() else 'x'); sys.exit(7)"
)


@dataclass
class Cluster:
    """A cluster to try: an account that may do all, the runner of an installation, and the node.

    Attributes:
        refusing: takes a right from the runner's account, named by verb and plural, for the time of a `with` block.
        away: lets the API end for that time.
    """

    admin: KubeClient
    settings: Settings
    node: PlayedNode
    new_runner: Callable[[Settings], ClusterRunner]
    refusing: Callable[[str, str], AbstractContextManager[None]]
    away: Callable[[], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self.runner = self.new_runner(self.settings)
        self.folder = self.settings.state

    def launch(self, code: str, spec: str = "v1", job: str = JOB, **environment: str) -> Launch:
        labels = Labels(instance_of(self.settings), job, spec)
        return Launch(
            labels=labels,
            command=(sys.executable, "-c", code, *labels.arguments()),
            environment={"PATH": "/usr/bin:/bin", **environment},
            directory=self.folder,
            log=self.settings.log(job),
            memory_bytes=100_000_000,
        )

    def start(self, code: str, spec: str = "v1") -> Process:
        """Start a job, and wait until it is up."""
        pid = self.runner.start(self.launch(code, spec))
        await_that(lambda: "up" in self.runner.logs(JOB, 5))
        return next(one for one in self.runner.list() if one.pid == pid)

    def await_gone(self) -> None:
        await_that(lambda: not self.runner.list(), 60)

    def alter(self, **spec: Any) -> None:
        """Change the one StatefulSet, as `kubectl edit` does."""
        (made,) = self.admin.items(SETS)
        self.admin.ask("PATCH", f"{SETS}/{made['metadata']['name']}", {"spec": spec})

    def evict(self, pod: Any) -> None:
        """Evict a pod through the API, as `kubectl drain` does."""
        name = {"metadata": {"name": pod["metadata"]["name"]}, "deleteOptions": {"gracePeriodSeconds": 1}}
        path = f"{PODS}/{pod['metadata']['name']}/eviction"
        self.admin.ask("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", **name})

    def names(self) -> list[str]:
        """Name all that is in the namespace of ours."""
        return [
            one["metadata"]["name"]
            for path in (SETS, PODS, CONFIG_MAPS, SECRETS)
            for one in self.admin.items(path)
            if one["metadata"]["name"].startswith("tocsin-")
        ]


class ClusterContract:
    """The promises; whoever inherits has a fixture `cluster`."""

    def test_a_process_is_listed_from_its_start_with_the_number_that_it_reports(self, cluster: Cluster) -> None:
        code = (
            "import os; print(os.environ['TOCSIN_PROCESS'], os.environ['A'], os.environ['TOCSIN_ALERTS'], flush=True)"
        )
        pid = cluster.runner.start(cluster.launch(f"{code}; {SLEEP}", A="b", TOCSIN_ALERTS="hunter2"))
        (listed,) = cluster.new_runner(cluster.settings).list()
        assert (listed.pid, listed.labels.job, listed.labels.spec) == (pid, JOB, "v1")
        assert listed.leader
        assert abs(listed.started_at - time.time()) < 60
        await_that(lambda: cluster.runner.logs(JOB, 2) == [f"{pid} b hunter2", "up"])
        assert cluster.runner.exit_code(JOB) is None
        assert "hunter2" not in str(cluster.admin.items(CONFIG_MAPS) + cluster.admin.items(SETS))

    def test_another_installation_is_not_seen(self, cluster: Cluster) -> None:
        cluster.start(SLEEP)
        other = cluster.settings.model_copy(update={"instance": "other"})
        assert cluster.new_runner(other).list() == []

    def test_one_that_is_asked_ends_in_time_and_leaves_its_last_words_and_nothing_else(self, cluster: Cluster) -> None:
        process = cluster.start(OBEDIENT)
        cluster.runner.stop(process)
        cluster.await_gone()
        assert cluster.runner.logs(JOB, 2) == ["up", "last words"]
        await_that(lambda: cluster.names() == [])
        cluster.runner.stop(process)  # what is gone is no error

    def test_one_that_ends_by_itself_is_not_run_again_by_the_cluster(self, cluster: Cluster) -> None:
        cluster.runner.start(cluster.launch(ENDING))
        await_that(lambda: [one.leader for one in cluster.runner.list()] == [False])
        assert cluster.runner.exit_code(JOB) == 7
        assert cluster.runner.logs(JOB, 5) == ["it broke"]
        time.sleep(1)  # a second run would have begun by now
        assert (cluster.folder / "runs").read_text() == "x"
        (rest,) = cluster.runner.list()
        cluster.runner.stop(rest, force=True)
        cluster.await_gone()
        assert cluster.runner.logs(JOB, 5) == ["it broke"]

    def test_a_deaf_one_is_ended_by_force(self, cluster: Cluster) -> None:
        process = cluster.start(DEAF)
        cluster.runner.stop(process)
        time.sleep(1)
        assert [one.pid for one in cluster.runner.list()] == [process.pid]
        cluster.runner.stop(process, force=True)
        cluster.await_gone()

    def test_a_signal_is_told_as_one(self, cluster: Cluster) -> None:
        cluster.runner.start(cluster.launch("import os; os.kill(os.getpid(), 9)"))
        await_that(lambda: [one.leader for one in cluster.runner.list()] == [False])
        assert cluster.runner.exit_code(JOB) == -9

    def test_two_processes_of_a_job_have_room_and_a_third_is_refused(self, cluster: Cluster) -> None:
        for spec in ("v1", "v2"):
            cluster.runner.start(cluster.launch(SLEEP, spec))
        assert sorted(one.labels.spec for one in cluster.runner.list()) == ["v1", "v2"]
        with pytest.raises(OSError, match="two processes of detector:failed_logins are in the cluster already"):
            cluster.runner.start(cluster.launch(SLEEP, "v3"))

    def test_an_evicted_pod_comes_again_and_runs(self, cluster: Cluster) -> None:
        process = cluster.start(SLEEP)
        (pod,) = cluster.admin.items(PODS)
        cluster.evict(pod)
        uid = pod["metadata"]["uid"]
        await_that(lambda: {one["metadata"]["uid"] for one in cluster.admin.items(PODS)} - {uid}, 60)
        await_that(lambda: cluster.runner.logs(JOB, 1) == ["up"], 60)
        assert cluster.runner.list() == [process]

    def test_a_pod_that_its_node_fails_for_want_of_room_runs_once_again(self, cluster: Cluster) -> None:
        """The controller makes the pod anew, and the supervisor may see the failed one before: never two run."""
        supervisor = self._supervisor(cluster, {"v1": OBEDIENT})
        good = {JOB: Desired("v1", beats=False)}
        self._tick_until(supervisor, good, lambda: cluster.runner.logs(JOB, 1) == ["up"])
        (pod,) = cluster.admin.items(PODS)
        cluster.node.evict(pod)

        def is_replaced() -> bool:
            (*others,) = cluster.admin.items(PODS)
            assert len(others) <= 1
            there = {one["metadata"]["uid"] for one in others}
            return bool(there - {pod["metadata"]["uid"]}) and cluster.runner.logs(JOB, 1) == ["up"]

        self._tick_until(supervisor, good, is_replaced)
        assert self._running(cluster) == ["v1"]

    def test_a_manifest_that_somebody_has_changed_is_told(self, cluster: Cluster) -> None:
        process = cluster.start(SLEEP)
        assert not process.altered
        cluster.alter(replicas=0)
        await_that(lambda: [one.altered for one in cluster.runner.list()] == [True])
        cluster.runner.stop(process)
        cluster.await_gone()

    def test_what_somebody_has_restarted_by_hand_is_told(self, cluster: Cluster) -> None:
        """As `kubectl rollout restart` does; on a real API the controller then replaces the pod, one at a time."""
        process = cluster.start(OBEDIENT)
        cluster.alter(template={"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}})
        assert [(one.pid, one.altered) for one in cluster.runner.list()] == [(process.pid, True)]

    def test_a_deletion_that_comes_late_spares_what_has_the_name_by_then(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The API answers it with 409: the uid is that of another object."""
        old = cluster.start(OBEDIENT)
        (made,) = cluster.admin.items(SETS)
        cluster.runner.stop(old)
        cluster.await_gone()
        new = cluster.start(OBEDIENT)
        with monkeypatch.context() as late:
            late.setattr(ClusterApi, "list", lambda *_: [made])
            cluster.runner.stop(old)
        assert cluster.runner.list() == [new]
        (there,) = cluster.admin.items(SETS)
        assert there["metadata"]["name"] == made["metadata"]["name"]

    def test_a_name_that_somebody_has_taken_is_said_and_left_to_him(self, cluster: Cluster) -> None:
        launch = cluster.launch(SLEEP)
        name = slot_names(launch.labels)[0]
        theirs = dict(objects_of(launch, cluster.settings, Slot(name=name, number=1)).stateful_set)
        theirs |= {"metadata": {"name": name}, "spec": {**theirs["spec"], "replicas": 0}}
        cluster.admin.ask("POST", SETS, theirs)
        with pytest.raises(OSError, match=f'409 statefulsets.* "{name}" already exists'):
            cluster.runner.start(launch)
        assert cluster.runner.list() == []
        assert cluster.names() == [name]
        cluster.admin.ask("DELETE", f"{SETS}/{name}")

    def test_what_the_account_may_not_create_leaves_nothing(self, cluster: Cluster) -> None:
        with cluster.refusing("create", "secrets"):
            with pytest.raises(OSError, match=r'403 secrets is forbidden: User .* cannot create resource "secrets"'):
                cluster.runner.start(cluster.launch(SLEEP))
            cluster.await_gone()
        await_that(lambda: cluster.names() == [])

    def test_a_stop_that_is_refused_leaves_the_process_listed(self, cluster: Cluster) -> None:
        process = cluster.start(SLEEP)
        with cluster.refusing("delete", "statefulsets"):
            cluster.runner.stop(process)
            assert cluster.runner.list() == [process]

    @pytest.mark.parametrize("plural", ["statefulsets", "pods"])
    def test_a_right_that_is_lost_and_comes_back_costs_no_process(self, cluster: Cluster, plural: str) -> None:
        supervisor = self._supervisor(cluster, {"v1": OBEDIENT, "v2": OBEDIENT})
        good, changed = ({JOB: Desired(spec, beats=False)} for spec in ("v1", "v2"))
        self._tick_until(supervisor, good, lambda: self._running(cluster) == ["v1"])
        before = cluster.runner.list()
        with cluster.refusing("list", plural):
            with pytest.raises(TransientError, match=rf"403 {plural}[.a-z]* is forbidden"):
                cluster.runner.list()
            for desired in (changed, {}):
                assert supervisor.tick(desired) == [], "what runs is not known, so nothing is stopped or started"
        assert cluster.runner.list() == before
        self._tick_until(supervisor, changed, lambda: self._running(cluster) == ["v2"])

    def test_an_api_that_dies_and_comes_back_costs_no_process(self, cluster: Cluster) -> None:
        supervisor = self._supervisor(cluster, {"v1": OBEDIENT, "v2": OBEDIENT})
        good = {JOB: Desired("v1", beats=False)}
        self._tick_until(supervisor, good, lambda: cluster.runner.logs(JOB, 1) == ["up"])
        (process,) = cluster.runner.list()
        with cluster.away():
            with pytest.raises(TransientError, match="Kubernetes does not answer"):
                cluster.runner.list()
            for desired in (good, {JOB: Desired("v2", beats=False)}, {}):
                assert supervisor.tick(desired) == [], "what runs is not known, so nothing is stopped or started"
            cluster.runner.stop(process)  # is an error in the log alone
            assert cluster.runner.logs(JOB, 1) == ["up"], "from the state folder"
        supervisor.tick(good)
        assert cluster.runner.list() == [process]
        assert supervisor.pasts()[JOB].failures == ()

    def test_one_that_ends_while_the_api_is_away_is_told_afterwards(self, cluster: Cluster) -> None:
        code = "import pathlib, sys, time; print('up', flush=True)\n"
        code += "while not pathlib.Path('go').exists(): time.sleep(0.1)\nsys.exit(7)"
        cluster.start(code)
        with cluster.away():
            (cluster.folder / "go").touch()
            time.sleep(1)
        await_that(lambda: [one.leader for one in cluster.runner.list()] == [False])
        assert cluster.runner.exit_code(JOB) == 7

    def test_a_start_that_the_api_leaves_half_done_is_begun_anew(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The StatefulSet is there and its ConfigMap is not, so that its pod would wait for good."""
        supervisor = self._supervisor(cluster, {"v1": OBEDIENT})
        good = {JOB: Desired("v1", beats=False)}
        create = ClusterApi.create

        def create_and_die(api: ClusterApi, kind: Kind, body: Object) -> Object:
            if kind is cluster_api.CONFIG_MAPS:
                outage.enter_context(cluster.away())
            return create(api, kind, body)

        with ExitStack() as outage, monkeypatch.context() as dying:
            dying.setattr(ClusterApi, "create", create_and_die)
            supervisor.tick(good)
        assert [one.split("-")[1] for one in cluster.names()] == ["detector"] * len(cluster.names()) != []
        self._tick_until(supervisor, good, lambda: cluster.runner.logs(JOB, 1) == ["up"])
        assert self._running(cluster) == ["v1"]

    def test_a_pod_without_its_stateful_set_is_listed_as_a_rest(self, cluster: Cluster) -> None:
        process = cluster.start(SLEEP)
        (made,) = cluster.admin.items(SETS)
        cluster.admin.ask("DELETE", f"{SETS}/{made['metadata']['name']}", {"propagationPolicy": "Orphan"})
        await_that(lambda: [one.leader for one in cluster.runner.list()] == [False])
        cluster.runner.stop(process, force=True)
        cluster.await_gone()
        for path in (CONFIG_MAPS, SECRETS):  # nobody owns them any more, and the supervisor may not delete them
            for one in cluster.admin.items(path):
                if one["metadata"]["name"].startswith("tocsin-"):
                    cluster.admin.ask("DELETE", f"{path}/{one['metadata']['name']}")

    def test_what_a_silent_node_runs_is_never_forgotten(self, cluster: Cluster) -> None:
        process = cluster.start(SLEEP)
        cluster.node.is_away = True
        cluster.runner.stop(process, force=True)
        time.sleep(2)
        assert [one.pid for one in cluster.runner.list()] == [process.pid]
        cluster.node.is_away = False
        cluster.await_gone()

    def test_the_policy_restarts_replaces_and_pauses_as_it_does_processes_of_this_machine(
        self, cluster: Cluster
    ) -> None:
        codes = {"v1": OBEDIENT, "v2": ENDING}
        supervisor = self._supervisor(cluster, codes)
        good = Desired("v1", beats=False)
        self._tick_until(supervisor, {JOB: good}, lambda: self._running(cluster) == ["v1"])
        cluster.alter(replicas=0)
        self._tick_until(supervisor, {JOB: good}, lambda: not any(one.altered for one in cluster.runner.list()))
        assert supervisor.pasts()[JOB].failures == (), "what somebody has changed is no failure of the job"
        failing = Desired("v2", beats=False)
        self._tick_until(supervisor, {JOB: failing}, lambda: supervisor.pasts()[JOB].condition is Condition.CRASH_LOOP)
        assert "exit code 7" in supervisor.pasts()[JOB].reason
        self._tick_until(supervisor, {JOB: good}, lambda: cluster.runner.logs(JOB, 1) == ["up"])
        self._tick_until(supervisor, {}, lambda: not cluster.runner.list())
        assert cluster.runner.logs(JOB, 1) == ["last words"]

    def test_a_hand_over_runs_both_until_the_new_one_is_ready(self, cluster: Cluster) -> None:
        supervisor = self._supervisor(cluster, {"v1": OBEDIENT, "v2": OBEDIENT})
        one, two = (Desired(spec, hands_over=True) for spec in ("v1", "v2"))
        self._tick_until(supervisor, {JOB: one}, lambda: self._running(cluster) == ["v1"])
        (old,) = cluster.runner.list()
        self._says(cluster, old, JobState.RUNNING)
        self._tick_until(supervisor, {JOB: two}, lambda: self._running(cluster) == ["v1", "v2"])
        supervisor.tick({JOB: two})
        assert self._running(cluster) == ["v1", "v2"]
        new = next(process for process in cluster.runner.list() if process.pid != old.pid)
        self._says(cluster, new, JobState.READY, beside=True)
        self._tick_until(supervisor, {JOB: two}, lambda: self._running(cluster) == ["v2"])
        assert [process.pid for process in cluster.runner.list()] == [new.pid]

    def _running(self, cluster: Cluster) -> Sequence[str]:
        return sorted(process.labels.spec for process in cluster.runner.list() if process.leader)

    def _supervisor(self, cluster: Cluster, codes: dict[str, str]) -> Supervisor:
        def launch(start: Start) -> Launch:
            return cluster.launch(codes[start.spec], start.spec, start.job)

        pace = Pace(first_delay=0.05, longest_delay=0.2, crash_loop_failures=2, stop_grace=5.0)
        charge = Charge(name="jobs", state=cluster.settings.state, launch=launch, pace=pace)
        return Supervisor(charge, cluster.runner)

    def _tick_until(self, supervisor: Supervisor, desired: dict[str, Desired], done: Callable[[], bool]) -> None:
        def look() -> bool:
            supervisor.tick(desired)
            return done()

        await_that(look, 60, every=0.2)

    def _says(self, cluster: Cluster, process: Process, state: JobState, *, beside: bool = False) -> None:
        report = JobReport(job=JOB, instance="x", pid=process.pid, state=state, at=datetime.now(UTC))
        beat(cluster.settings.state, report, beside=beside)
