"""Write what a Kubernetes cluster needs so that jobs can run there: accounts, rights, settings, volume, supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tocsin.declare.blocks.runner_settings import (
    CONTAINER_SECURITY,
    JOB_ACCOUNT,
    POD_SECURITY,
    STATE_CLAIM,
    SUPERVISOR_POD,
)
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.setting_blocks import LOOPBACK, ListenSettings
from tocsin.declare.settings import Settings
from tocsin.supervise.planning.pod_resources import pod_resources
from tocsin.supervise.runners.job_command import setting_variables
from tocsin.supervise.runners.job_pod import COMPONENT, INSTANCE, driver_address, password_faults
from tocsin.supervise.runners.process_labels import instance_of

SUPERVISOR = "tocsin-supervisor"
_SETTINGS = "tocsin-settings"
# Where the image of docs/run/kubernetes.md has the project, and what writes there.
_PROJECT, _STATE = "/opt/tocsin", "/var/lib/tocsin"

Manifest = dict[str, Any]


def manifests(settings: Settings, *, storage: str = "20Gi", storage_class: str | None = None) -> list[Manifest]:
    """Write the manifests of an installation, in the order in which they are to be applied; Kafka and the DBs exist.

    The volume of the state folder is of size `storage`; `storage_class` (None: the cluster's default) is one that can
    be mounted by several nodes.

    Raises:
        ConfigError: jobs would not run in a cluster, or a password would be written into a ConfigMap.
    """
    _check(settings)
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": settings.runner.namespace}},
        *rights(settings),
        _of(settings, "v1", "ConfigMap", _SETTINGS) | {"data": _variables(settings)},
        _claim(settings, storage, storage_class),
        *_services(settings),
        _supervisor(settings),
    ]


def rights(settings: Settings) -> list[Manifest]:
    """Write the accounts of the supervisor and of the jobs, and what they may do.

    That of jobs may do nothing; docs/run/cluster.md has the rule for executors that are pods.
    """
    rules = [
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["list", "create", "patch", "delete"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    ]
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": SUPERVISOR, "namespace": settings.runner.namespace}
    binding = {"roleRef": {"apiGroup": group, "kind": "Role", "name": SUPERVISOR}, "subjects": [subject]}
    accounts = (SUPERVISOR, JOB_ACCOUNT)
    return [
        *(_of(settings, "v1", "ServiceAccount", account) for account in accounts),
        _of(settings, f"{group}/v1", "Role", SUPERVISOR) | {"rules": rules},
        _of(settings, f"{group}/v1", "RoleBinding", SUPERVISOR) | binding,
    ]


def _check(settings: Settings) -> None:
    faults = []
    if settings.runner.kind != "kubernetes":
        faults.append(Fault("the settings", 'is "local"; write "kubernetes"', key="runner.kind"))
    if settings.kafka.bootstrap_servers.startswith(("127.", "localhost")):
        faults.append(Fault("the settings", "pods cannot reach loopback; name the brokers", "kafka.bootstrap_servers"))
    if settings.instance == "local":
        faults.append(Fault("the settings", "name the installation: its jobs carry that in the cluster", "instance"))
    faults += password_faults(settings)
    if faults:
        raise ConfigError(faults)


def _variables(settings: Settings) -> dict[str, str]:
    """The settings as variables; project and state folder are those of the image."""
    folders = {"TOCSIN_PROJECT": _PROJECT, "TOCSIN_STATE": _STATE}
    return dict(sorted((setting_variables(settings) | folders).items()))


def _of(settings: Settings, version: str, kind: str, name: str) -> Manifest:
    labels = {"app.kubernetes.io/name": "tocsin", COMPONENT: name}
    metadata = {"name": name, "namespace": settings.runner.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _claim(settings: Settings, storage: str, storage_class: str | None) -> Manifest:
    spec: Manifest = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": storage}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return _of(settings, "v1", "PersistentVolumeClaim", STATE_CLAIM) | {"spec": spec}


def _services(settings: Settings) -> list[Manifest]:
    """Give each server that listens beyond loopback a name in the cluster; its pod is the job's, in whichever slot."""
    servers = {kind.word: getattr(settings, kind.server) for kind in KINDS.values() if kind.server}
    return [_service(settings, job, server) for job, server in servers.items() if server.host != LOOPBACK]


def _service(settings: Settings, job: str, server: ListenSettings) -> Manifest:
    instance = instance_of(settings.model_copy(update={"state": Path(_STATE)}))
    ports = [{"name": "https", "port": server.port, "targetPort": server.port}]
    spec = {"selector": {INSTANCE: instance, COMPONENT: job}, "ports": ports}
    return _of(settings, "v1", "Service", f"tocsin-{job}") | {"spec": spec}


def _supervisor(settings: Settings) -> Manifest:
    """One replica: a second one on the same state folder refuses to start."""
    runner, labels = settings.runner, {COMPONENT: SUPERVISOR}
    volumes, mounts = runner.volumes(_STATE)
    container = {
        "name": "supervisor",
        "image": runner.image,
        "command": ["python", "-m", "tocsin.dev.unattended"],
        "envFrom": [{"configMapRef": {"name": _SETTINGS}}],
        "resources": pod_resources(settings, SUPERVISOR_POD),
        "volumeMounts": mounts,
        "securityContext": CONTAINER_SECURITY,
        "env": driver_address(settings),
    }
    pod = {
        "serviceAccountName": SUPERVISOR,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
    }
    spec = {
        "replicas": 1,
        "serviceName": SUPERVISOR,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return _of(settings, "apps/v1", "StatefulSet", SUPERVISOR) | {"spec": spec}
