"""Write the objects that run one job on Kubernetes: a StatefulSet, and its environment in two parts. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.model.names import COMPUTE, DETECTOR, JobName
from tocsin.project.blocks.runner_settings import CONTAINER_SECURITY, POD_SECURITY
from tocsin.project.blocks.spark_settings import LOCAL
from tocsin.project.settings import Settings
from tocsin.runtime.heartbeat import NUMBER
from tocsin.runtime.private import UMASK
from tocsin.supervision.planning.pod_resources import pod_resources
from tocsin.supervision.runners.process_labels import Labels
from tocsin.supervision.runners.runner import Launch

CONTAINER = "job"
INSTANCE, PROCESS, COMPONENT = "tocsin/instance", "tocsin/process", "app.kubernetes.io/component"
"""Labels: the installation; the number of one start, which is also what its reports give as their pid; the kind."""
JOB, SPEC, STARTED = "tocsin/job", "tocsin/spec", "tocsin/started-at"
"""Annotations: what labels cannot hold, and the second of the start by the supervisor's clock."""
# Longer than the policy waits before it ends a job by force.
GRACE_SECONDS = 30
_ONCE = "/run/tocsin-once"
_LONGEST_NAME = 40  # and a hash; the controller makes labels of the name with 11 characters more, of 63
# Settings that may hold a password.
_SECRET = ("TOCSIN_ALERTS", "TOCSIN_VIEWS", "TOCSIN_HISTORY")

# Kubernetes restarts each container of a StatefulSet that ends. When to restart a job is for the policy to decide, so a
# container that is started again in its pod only waits to be deleted. The log goes to the API and to the state folder:
# the API forgets it with the pod. `wait` ends early when a signal comes, so it is called until the job is gone.
_SCRIPT = f"""\
umask {UMASK:03o}
once=$1/started log=$2
shift 2
if [ -e "$once" ]; then
  trap 'exit 0' TERM
  while :; do sleep 3600 & wait $!; done
fi
: > "$once"
mkfifo "$once.out"
tee -a "$log" < "$once.out" &
tee=$!
"$@" > "$once.out" 2>&1 &
job=$!
trap 'kill -TERM "$job"' TERM
while :; do
  wait "$job"
  code=$?
  kill -0 "$job" 2> /dev/null || break
done
(sleep 5; kill "$tee") 2> /dev/null &
wait "$tee"
exit "$code"
"""


@dataclass(frozen=True)
class Objects:
    """The objects of one start; `environment` and `secrets` are owned by `stateful_set` once that is there."""

    stateful_set: Mapping[str, Any]
    environment: Mapping[str, Any]
    secrets: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One of the two StatefulSets that a job may have: one leads, and in a hand-over another comes up beside it.

    Attributes:
        name: of the objects.
        number: of this start.
        at: epoch seconds of it.
    """

    name: str
    number: int
    at: float = field(default=0.0)


def slot_names(labels: Labels) -> tuple[str, str]:
    """Name both StatefulSets of a job."""
    readable = re.sub(r"[^a-z0-9]+", "-", f"tocsin-{labels.job.lower()}").strip("-")[:_LONGEST_NAME].rstrip("-")
    mark = hashlib.sha256(f"{labels.instance} {labels.job}".encode()).hexdigest()[:8]
    return f"{readable}-{mark}-a", f"{readable}-{mark}-b"


def objects_of(launch: Launch, settings: Settings, slot: Slot) -> Objects:
    """Write the objects that start `launch` in `slot`; the state folder is mounted where it is here."""
    marks = {
        INSTANCE: launch.labels.instance,
        PROCESS: str(slot.number),
        "app.kubernetes.io/managed-by": "tocsin",
        COMPONENT: JobName.parse(launch.labels.job).kind,
    }
    notes = {JOB: launch.labels.job, SPEC: launch.labels.spec, STARTED: repr(slot.at)}
    metadata = {"name": slot.name, "labels": marks, "annotations": notes}
    own = {**launch.environment, **launch.labels.variable(), NUMBER: str(slot.number)}
    secret = {name: value for name, value in own.items() if name in _SECRET}
    spec = {
        "replicas": 1,
        "serviceName": slot.name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {PROCESS: str(slot.number)}},
        "template": {
            "metadata": {"labels": marks, "annotations": notes},
            "spec": _pod(launch, settings, slot.name),
        },
    }
    return Objects(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {name: value for name, value in own.items() if name not in secret},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret},
    )


def owned(body: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """Let `body` go when its `owner`, a StatefulSet as the API returned it, has gone."""
    of = owner["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": of["name"], "uid": of["uid"]}
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [reference]}}


def driver_fields(settings: Settings) -> dict[str, Any]:
    """Write what the container of a driver needs to tell executors where it is; nothing if it has none."""
    if settings.spark.master == LOCAL:
        return {}
    return {"env": [{"name": "TOCSIN_SPARK__DRIVER_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}


def _pod(launch: Launch, settings: Settings, name: str) -> dict[str, Any]:
    volumes, mounts = settings.runner.volumes(str(settings.state.resolve()))
    volumes.append({"name": "once", "emptyDir": {}})
    mounts.append({"name": "once", "mountPath": _ONCE})
    kind = JobName.parse(launch.labels.job).kind
    is_driver = kind in (DETECTOR, COMPUTE)
    container = {
        "name": CONTAINER,
        "image": settings.runner.image,
        "command": ["/bin/sh", "-c", _SCRIPT, "job", _ONCE, str(launch.log), *launch.command],
        "workingDir": str(launch.directory),
        "envFrom": [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}],
        "resources": pod_resources(settings, kind, launch.memory_bytes),
        "volumeMounts": mounts,
        "securityContext": CONTAINER_SECURITY,
        **(driver_fields(settings) if is_driver else {}),
    }
    return {
        "serviceAccountName": settings.runner.service_account,
        "automountServiceAccountToken": is_driver and settings.spark.is_on_kubernetes,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
    }
