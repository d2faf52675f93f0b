"""Jobs as StatefulSets of a Kubernetes cluster, which restarts their containers and backs off by itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict

from tocsin.declare.blocks.spark_settings import KUBERNETES, LOCAL
from tocsin.declare.model.errors import ConfigError, Fault, TransientError
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import JobName
from tocsin.declare.setting_blocks import CONTAINER_SECURITY, JOB_ACCOUNT, POD_SECURITY, RunnerSettings
from tocsin.declare.settings import Settings
from tocsin.declare.sinks import SINKS
from tocsin.platform.heartbeat import NUMBER, heartbeat_file
from tocsin.supervise.job_states import Timing
from tocsin.supervise.planning.job_inputs import pod_resources
from tocsin.supervise.runners.runner import Labels, Launch, Process, instance_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, V1ContainerStatus, V1ObjectMeta, V1Pod


_FORCED_SECONDS = 1  # never 0: that forgets a pod that its node may still run
_SIGNALLED = 128
_TIMEOUT: dict[str, Any] = {"_request_timeout": 10.0}
_LONGEST = 300
_INVALID = 422

log = structlog.get_logger()


class ClusterError(TransientError, OSError):
    """The API did not do what it was asked; a retry helps once the cause is gone."""

    def __str__(self) -> str:
        return str(self.args[0])


class ClusterRunner:
    """Starts a process as a StatefulSet with one replica, and stops it by asking for none.

    A job has two StatefulSets, one for the process that takes over in a hand-over. They stay when the job stops.
    """

    def __init__(self, settings: Settings) -> None:
        """Raise ConfigError if an address in `settings` holds a password, which whoever may list pods would read."""
        if faults := password_faults(settings):
            raise ConfigError(faults)
        self._settings = settings
        self._ours = {
            "namespace": settings.runner.namespace,
            "label_selector": f"{INSTANCE}={instance_of(settings)},app.kubernetes.io/managed-by=tocsin",
        }
        self._pods: Sequence[V1Pod] = ()

    def start(self, launch: Launch) -> int:
        """See `Runner.start`. Refused while two processes of the job are there."""
        taken = {_slot_name(there.metadata) for there in (*self._running_sets(), *self._list_pods())}
        free = next((name for name in slot_names(launch.labels) if name not in taken), None)
        if free is None:
            raise ClusterError(f"two processes of {launch.labels.job} are in the cluster already")
        slot = Slot(name=free, number=secrets.randbits(31) | 1, at=time.time())
        body, names = stateful_set(launch, self._settings, slot), (free, self._settings.runner.namespace)
        try:
            with self._asking(f"start {launch.labels.job}"):
                self._apps().patch_namespaced_stateful_set(
                    *names, body, field_manager="tocsin", force=True, _content_type="application/apply-patch+yaml",
                    **_TIMEOUT,
                )  # fmt: skip
        except ClusterError as error:
            if error.args[1:] != (_INVALID,):
                raise
            with self._asking(f"remove {free}"):  # its selector cannot change
                self._apps().delete_namespaced_stateful_set(*names, propagation_policy="Foreground", **_TIMEOUT)
            raise ClusterError(f"removing the StatefulSet {free} of an earlier release; trying again") from error
        return slot.number

    def stop(self, process: Process, *, force: bool = False) -> None:
        """See `Runner.stop`. Forced, its node has a second to end it; if the node is silent, it stays in the list."""
        try:
            sets = [workload for workload in self._running_sets() if _number(workload.metadata) == process.pid]
            pods = [pod for pod in self._list_pods() if _number(pod.metadata) == process.pid]
            with self._asking(f"stop {process.labels.job}"):
                for workload in sets:
                    self._apps().patch_namespaced_stateful_set_scale(
                        *_place(workload.metadata), {"spec": {"replicas": 0}}, **_TIMEOUT
                    )
                for pod in pods if force else ():
                    self._core().delete_namespaced_pod(
                        *_place(pod.metadata), grace_period_seconds=_FORCED_SECONDS, **_TIMEOUT
                    )
        except ClusterError as error:
            log.error("stop failed", of=process.labels.job, pid=process.pid, error=str(error))

    def list(self) -> list[Process]:
        """See `Runner.list`."""
        sets = self._running_sets()
        self._pods = self._list_pods()
        found = {_number(pod.metadata): _process(pod.metadata, _status(pod)) for pod in self._pods}
        for workload in sets:
            found.setdefault(_number(workload.metadata), _process(workload.metadata, None))
        return sorted(found.values(), key=lambda process: (process.labels.job, process.started_at, process.pid))

    def wait_for_end(self, seconds: float) -> bool:
        """See `Runner.wait_for_end`. Nodes restart what ends: it is enough to be asked for it now and then."""
        time.sleep(seconds)
        return False

    def shares_files(self) -> bool:
        """See `Runner.shares_files`."""
        return False

    def exit_code(self, job: str) -> int | None:
        """See `Runner.exit_code`. Of the last container of the pod that the last list saw; None of one that is gone."""
        pod = self._last_pod(job)
        end = None if pod is None else _end(_status(pod))
        if end is None:
            return None
        return int(end.exit_code) if end.exit_code <= _SIGNALLED else _SIGNALLED - int(end.exit_code)

    def logs(self, job: str, lines: int) -> Sequence[str]:
        """See `Runner.logs`. Of the containers before and now of its pod; why it waits if none has run."""
        try:
            self._pods = self._list_pods()
            pod = self._last_pod(job)
            if pod is None:
                return []
            status = _status(pod)
            if status is not None and not _has_run(status):
                waiting = status.state.waiting
                return [f"{waiting.reason}: {waiting.message}"] if waiting and waiting.message else []
            runs = (True, False) if status is not None and status.restart_count else (False,)
            found = [line for previous in runs for line in self._log(pod, lines, previous=previous)]
            return found[-lines:]
        except ClusterError as error:
            return [str(error)]

    def _log(self, pod: V1Pod, lines: int, *, previous: bool) -> Sequence[str]:
        try:
            with self._asking(f"read the log of {pod.metadata.name}"):
                text = self._core().read_namespaced_pod_log(
                    *_place(pod.metadata), tail_lines=lines, previous=previous, **_TIMEOUT
                )
        except ClusterError:
            if not previous:
                raise
            return []  # its node has forgotten it
        return str(text).splitlines()

    def _running_sets(self) -> Sequence[Any]:
        with self._asking("list statefulsets"):
            found = self._apps().list_namespaced_stateful_set(**self._ours, **_TIMEOUT).items
        return [workload for workload in found if workload.spec.replicas]

    def _list_pods(self) -> Sequence[V1Pod]:
        with self._asking("list pods"):
            found: Sequence[V1Pod] = self._core().list_namespaced_pod(**self._ours, **_TIMEOUT).items
        return found

    def _last_pod(self, job: str) -> V1Pod | None:
        own = [pod for pod in self._pods if _note(pod.metadata, JOB) == job]
        return max(own, key=lambda pod: float(_note(pod.metadata, STARTED)), default=None)

    @cached_property
    def _client(self) -> ApiClient:
        return _connect(self._settings.runner)

    def _apps(self) -> Any:
        from kubernetes.client import AppsV1Api  # noqa: PLC0415 - takes two seconds; most installations have no cluster

        return AppsV1Api(self._client)

    def _core(self) -> Any:
        from kubernetes.client import CoreV1Api  # noqa: PLC0415 - as above

        return CoreV1Api(self._client)

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        from kubernetes.client import ApiException  # noqa: PLC0415 - as above
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

        try:
            yield
        except ApiException as error:
            reason = f"Kubernetes: {what}: {error.status} {_reason(str(error.body))}"
            raise ClusterError(reason, error.status) from error
        except (HTTPError, OSError) as error:
            raise ClusterError(f"Kubernetes does not answer: {error}"[:_LONGEST]) from error


def _connect(settings: RunnerSettings) -> ApiClient:
    """Log in as the account of this pod, else as the kubeconfig says."""
    from kubernetes import client  # noqa: PLC0415 - as above
    from kubernetes.config import config_exception, incluster_config, kube_config  # noqa: PLC0415 - as above

    configuration, kubeconfig = client.Configuration(), os.environ.get("KUBECONFIG")
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            incluster_config.load_incluster_config(client_configuration=configuration)
        else:
            kube_config.load_kube_config(kubeconfig, client_configuration=configuration)
    except (config_exception.ConfigException, OSError) as error:
        what = f"no login to a Kubernetes cluster: {error}; give the pod a service account, or set KUBECONFIG"
        raise ConfigError.one("the kubeconfig", what, key="runner.kind") from error
    configuration.retries = False  # whoever supervises looks again soon
    return client.ApiClient(configuration)


def _process(meta: V1ObjectMeta, status: V1ContainerStatus | None) -> Process:
    """Read a pod, or a StatefulSet without one.

    One that has run is restarted by its node, and counts as just started while it waits for that. Until then nobody
    looks whether it comes to life, so supervision must.
    """
    labels = Labels(meta.labels[INSTANCE], _note(meta, JOB), _note(meta, SPEC))
    if status is None or not _has_run(status):
        return Process(labels, _number(meta), float(_note(meta, STARTED)))
    running = status.state.running
    began: datetime | None = running.started_at if running is not None else None
    started_at = time.time() if began is None else began.timestamp()
    return Process(labels, _number(meta), started_at, restarts=int(status.restart_count))


def _number(meta: V1ObjectMeta) -> int:
    return int(meta.labels[PROCESS])


def _note(meta: V1ObjectMeta, key: str) -> str:
    return str((meta.annotations or {}).get(key, ""))


def _slot_name(meta: V1ObjectMeta) -> str:
    """Name the StatefulSet of an object: a pod has its name with `-0` behind it."""
    return str(meta.name).removesuffix("-0")


def _place(meta: V1ObjectMeta) -> tuple[str, str]:
    return str(meta.name), str(meta.namespace)


def _status(pod: V1Pod) -> V1ContainerStatus | None:
    """Return the status of the container; None before its node has seen it."""
    statuses = (pod.status.container_statuses if pod.status is not None else None) or ()
    return statuses[0] if statuses else None


def _has_run(status: V1ContainerStatus) -> bool:
    return status.state.running is not None or _end(status) is not None


def _end(status: V1ContainerStatus | None) -> Any:
    states = () if status is None else (status.state, status.last_state)
    return next((state.terminated for state in states if state is not None and state.terminated), None)


def _reason(answer: str) -> str:
    try:
        return str(json.loads(answer)["message"])[:_LONGEST]
    except (ValueError, KeyError, TypeError):
        return answer[:_LONGEST]


INSTANCE, PROCESS, COMPONENT = "tocsin/instance", "tocsin/process", "app.kubernetes.io/component"
"""Labels: the installation; the number of one start, which is also what its reports give as their pid; the kind."""
JOB, SPEC, STARTED = "tocsin/job", "tocsin/spec", "tocsin/started-at"
"""Annotations: what labels cannot hold, and the second of the start by the supervisor's clock."""
GRACE_SECONDS = 30  # longer than the policy waits before it ends a job by force
_SLOT = "tocsin/slot"
_LONGEST_NAME = 40  # and a hash; the controller makes labels of the name with 11 characters more, of 63
_PROBE_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One of the two StatefulSets that a job may have: one leads, and in a hand-over another comes up beside it.

    `number` and `at`, in epoch seconds, are of this start; `name` is of the StatefulSet.
    """

    name: str
    number: int
    at: float


def slot_names(labels: Labels) -> tuple[str, str]:
    """Name both StatefulSets of a job."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"tocsin-{labels.job.lower()}").strip("-")[:_LONGEST_NAME].rstrip("-")
    mark = hashlib.sha256(f"{labels.instance} {labels.job}".encode()).hexdigest()[:8]
    return f"{readable}-{mark}-a", f"{readable}-{mark}-b"


def stateful_set(launch: Launch, settings: Settings, slot: Slot) -> dict[str, Any]:
    """Write what starts `launch` in `slot`; the state folder is mounted where it is here."""
    marks = {
        INSTANCE: launch.labels.instance,
        PROCESS: str(slot.number),
        _SLOT: slot.name,
        "app.kubernetes.io/managed-by": "tocsin",
        COMPONENT: JobName.parse(launch.labels.job).kind,
    }
    notes = {JOB: launch.labels.job, SPEC: launch.labels.spec, STARTED: repr(slot.at)}
    metadata = {"labels": marks, "annotations": notes}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": slot.name, **metadata},
        "spec": {
            "replicas": 1,
            "serviceName": slot.name,
            "selector": {"matchLabels": {_SLOT: slot.name}},
            "template": {"metadata": metadata, "spec": _pod(launch, settings, slot)},
        },
    }


def password_faults(settings: Settings) -> list[Fault]:
    """Find addresses that hold a password: whoever may list pods would read them."""
    secret = settings.runner.secret or "of runner.secret"
    return [
        Fault("the settings", f"holds a password; put it into the Secret {secret}, as a file", key=f"views.{sink}")
        for sink in SINKS
        if (address := getattr(settings.views, sink, None)) and _has_password(address)
    ]


def _driver_address(settings: Settings) -> list[dict[str, Any]]:
    """Write the variable by which a driver tells executors where it is; none where there are no executors."""
    if settings.spark.master == LOCAL:
        return []
    return [{"name": "TOCSIN_SPARK__DRIVER_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def _pod(launch: Launch, settings: Settings, slot: Slot) -> dict[str, Any]:
    volumes, mounts = settings.runner.volumes(str(settings.state.resolve()))
    kind = JobName.parse(launch.labels.job).kind
    is_driver = KINDS[kind].has_executors
    environment = {**launch.environment, **launch.labels.variable(), NUMBER: str(slot.number)}
    variables = [{"name": name, "value": value} for name, value in sorted(environment.items())]
    container = {
        "name": "job",
        "image": settings.runner.image,
        "command": list(launch.command),
        "workingDir": str(launch.directory),
        "env": [*variables, *(_driver_address(settings) if is_driver else ())],
        "resources": pod_resources(settings, kind, launch.memory_bytes),
        "volumeMounts": mounts,
        "securityContext": CONTAINER_SECURITY,
        **_probes(settings, launch.labels.job),
    }
    return {
        "serviceAccountName": JOB_ACCOUNT,
        "automountServiceAccountToken": is_driver and settings.spark.master.startswith(KUBERNETES),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
    }


def _probes(settings: Settings, job: str) -> dict[str, Any]:
    """Let the node restart a job that is silent, by the age of its heartbeat.

    A restarted container finds the heartbeat of the one before, so silence counts for as long as a start takes.
    """
    files = " ".join(str(heartbeat_file(settings.state.resolve(), job, beside=beside)) for beside in (False, True))
    timing = Timing()
    recent = f"find {files} -newermt '-{timing.stale_after:.0f} seconds' 2>/dev/null | grep -q ."
    probe = {"exec": {"command": ["/bin/sh", "-c", recent]}, "periodSeconds": _PROBE_SECONDS, "timeoutSeconds": 5}
    start = round(timing.start_grace / _PROBE_SECONDS)
    silence = start - round(timing.stale_after / _PROBE_SECONDS)
    return {
        "startupProbe": {**probe, "failureThreshold": start},
        "livenessProbe": {**probe, "failureThreshold": silence},
    }


def _has_password(address: str) -> bool:
    """Look for a password in a URL, in its query, or in libpq's form `host=db password=x`."""
    parts = urlsplit(address)
    if parts.password or "password" in parse_qs(parts.query):
        return True
    try:
        return "password" in conninfo_to_dict(address)
    except psycopg.ProgrammingError:  # a path, or the address of another kind of database
        return False
