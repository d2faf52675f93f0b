"""The runner on a fake of the API's client; tests/kubernetes tries it on a real API."""

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiException, V1Pod, V1StatefulSet
from urllib3.exceptions import MaxRetryError

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import RunnerSettings, ViewSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.supervise.runners.cluster_runner import ClusterRunner
from tocsin.supervise.runners.runner import Labels, Launch, instance_of

JOB = "detector:failed_logins"
BEGAN = datetime(2026, 5, 1, tzinfo=UTC)
RUNNING = {"running": {"startedAt": BEGAN.isoformat()}}
WAITING = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


class FakeCluster:
    """The objects of one namespace, as the client gives them; no controller."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.runner = settings, ClusterRunner(settings)
        self.sets: dict[str, Any] = {}
        self.pods: dict[str, Any] = {}
        self.logs: dict[bool, str | Exception] = {}
        self.fault: Exception | None = None

    def start(self, spec: str = "v1") -> int:
        labels, log = Labels(instance_of(self._settings), JOB, spec), self._settings.log(JOB)
        return self.runner.start(Launch(labels=labels, command=("x",), environment={}, directory=Path("/"), log=log))

    def list_namespaced_stateful_set(self, **_: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        return SimpleNamespace(items=[V1StatefulSet.from_dict(one) for one in self.sets.values()])

    def list_namespaced_pod(self, **_: Any) -> Any:
        return SimpleNamespace(items=[V1Pod.from_dict(one) for one in self.pods.values()])

    def patch_namespaced_stateful_set(self, name: str, namespace: str, body: Any, **_: Any) -> None:
        if "old" in self.sets.get(name, {}):
            raise ApiException(status=422, reason="spec: Forbidden")
        self.sets[name] = {**body, "metadata": {**body["metadata"], "namespace": namespace}}

    def delete_namespaced_stateful_set(self, name: str, namespace: str, **_: Any) -> None:
        del self.sets[name]

    def patch_namespaced_stateful_set_scale(self, name: str, namespace: str, body: Any, **_: Any) -> None:
        self.sets[name]["spec"]["replicas"] = body["spec"]["replicas"]

    def delete_namespaced_pod(self, name: str, namespace: str, **_: Any) -> None:
        del self.pods[name]

    def read_namespaced_pod_log(self, name: str, namespace: str, *, previous: bool, **_: Any) -> str:
        found = self.logs[previous]
        if isinstance(found, Exception):
            raise found
        return found

    def run(self, state: Any = None, last: Any = None, restarts: int = 0) -> None:
        """Let each StatefulSet have its pod, whose container is in `state`; in none before its node has seen it."""
        for name, one in self.sets.items():
            status = {"name": "job", "image": "x", "imageID": "", "ready": False, "restartCount": restarts}
            status |= {"state": state, "lastState": last or {}}
            meta = {**one["spec"]["template"]["metadata"], "name": f"{name}-0", "namespace": "tocsin"}
            spec = one["spec"]["template"]["spec"]
            self.pods[f"{name}-0"] = {"metadata": meta, "spec": spec}
            self.pods[f"{name}-0"]["status"] = {"containerStatuses": [status]} if state else {}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path, runner=RunnerSettings(kind="kubernetes", image="tocsin:1"))


@pytest.fixture
def fake(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    one = FakeCluster(settings)
    monkeypatch.setattr(one.runner, "_apps", lambda: one)
    monkeypatch.setattr(one.runner, "_core", lambda: one)
    return one


def test_a_hand_over_has_room_and_a_third_process_does_not(fake: FakeCluster) -> None:
    first, second = (fake.start(spec) for spec in ("v1", "v2"))
    assert {one.pid: one.labels.spec for one in fake.runner.list()} == {first: "v1", second: "v2"}
    with pytest.raises(OSError, match=f"two processes of {JOB} are in the cluster already"):
        fake.start("v3")
    fake.run(RUNNING)
    fake.runner.stop(next(one for one in fake.runner.list() if one.pid == first))
    assert sorted(one["spec"]["replicas"] for one in fake.sets.values()) == [0, 1]
    assert {one.pid for one in fake.runner.list()} == {first, second}, "until its node confirms that it is gone"
    with pytest.raises(OSError, match="two processes"):
        fake.start("v3")
    fake.runner.stop(next(one for one in fake.runner.list() if one.pid == first), force=True)
    assert [one.pid for one in fake.runner.list()] == [second]
    third = fake.start("v3")
    assert {one.pid for one in fake.runner.list()} == {second, third}
    assert len(fake.sets) == 2


@pytest.mark.parametrize(
    ("state", "last", "restarts"),
    [
        (None, None, None),
        ({"waiting": {"reason": "ImagePullBackOff"}}, None, None),
        (RUNNING, None, 0),
        (RUNNING, ended(1), 3),
        (WAITING, ended(1), 4),
    ],
)
def test_what_has_run_is_restarted_by_its_node_and_anything_else_by_supervision(
    fake: FakeCluster, state: Any, last: Any, restarts: int | None
) -> None:
    fake.start()
    fake.run(state, last, restarts or 0)
    (process,) = fake.runner.list()
    assert process.restarts == restarts
    began = BEGAN.timestamp() if state is RUNNING else time.time()
    assert process.started_at == pytest.approx(began, abs=5)


@pytest.mark.parametrize(
    ("state", "last", "code"),
    [(RUNNING, None, None), (RUNNING, ended(2), 2), (WAITING, ended(137), -9), (ended(0), ended(1), 0)],
)
def test_the_exit_code_is_that_of_the_last_container_that_ended(
    fake: FakeCluster, state: Any, last: Any, code: int | None
) -> None:
    assert fake.runner.exit_code(JOB) is None
    fake.start()
    fake.run(state, last)
    fake.runner.list()
    assert fake.runner.exit_code(JOB) == code


def test_the_log_goes_back_to_the_container_before(fake: FakeCluster) -> None:
    assert fake.runner.logs(JOB, 9) == []
    fake.start()
    fake.run({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    assert fake.runner.logs(JOB, 9) == ["ImagePullBackOff: no such image"]
    fake.run(RUNNING, ended(1), 1)
    fake.logs = {True: "one\ntwo\n", False: "three\n"}
    assert (fake.runner.logs(JOB, 9), fake.runner.logs(JOB, 2)) == (["one", "two", "three"], ["two", "three"])
    fake.logs[True] = ApiException(status=400)
    assert fake.runner.logs(JOB, 9) == ["three"]
    fake.logs[False] = ApiException(status=403)
    assert fake.runner.logs(JOB, 9)[0].startswith("Kubernetes: read the log of tocsin-detector-failed-logins-")


def test_one_of_an_earlier_release_is_removed_and_the_start_tried_again(fake: FakeCluster) -> None:
    fake.start()
    (name,) = fake.sets
    fake.sets[name]["old"] = True
    fake.sets[name]["spec"]["replicas"] = 0
    with pytest.raises(TransientError, match=f"removing the StatefulSet {name} of an earlier release; trying again"):
        fake.start()
    assert fake.sets == {}
    fake.start()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ApiException(status=403, reason="x"), "Kubernetes: list statefulsets: 403 "),
        (MaxRetryError(SimpleNamespace(), "/"), "Kubernetes does not answer: "),  # type: ignore[arg-type]
    ],
)
def test_an_api_that_refuses_or_is_away_is_said_to(fake: FakeCluster, fault: Exception, message: str) -> None:
    fake.start()
    (process,) = fake.runner.list()
    fake.fault = fault
    with pytest.raises(TransientError, match=message):
        fake.runner.list()
    fake.runner.stop(process)  # is an error in the log alone


def test_without_a_login_the_fault_names_the_setting(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(settings.state / "none"))
    with pytest.raises(ConfigError, match=r"runner\.kind: no login to a Kubernetes cluster"):
        ClusterRunner(settings).list()


def test_an_address_with_a_password_is_refused_for_it_would_be_seen(settings: Settings) -> None:
    views = ViewSettings(redis="redis://:hunter2@cache/0", postgres="postgresql://tocsin@db/views")
    with pytest.raises(ConfigError, match=r"views\.redis: holds a password; put it into the Secret") as refused:
        ClusterRunner(settings.model_copy(update={"views": views}))
    assert "hunter2" not in str(refused.value)
    assert [fault.key for fault in refused.value.faults] == ["views.redis"]


def test_a_cluster_needs_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_RUNNER__KIND", "kubernetes")
    with pytest.raises(ConfigError, match="kind kubernetes also needs image"):
        load_settings(tmp_path)
