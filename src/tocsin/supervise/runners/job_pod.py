"""Write the StatefulSet that runs one job on Kubernetes. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tocsin.declare.blocks.runner_settings import CONTAINER_SECURITY, JOB_ACCOUNT, POD_SECURITY
from tocsin.declare.blocks.spark_settings import KUBERNETES, LOCAL
from tocsin.declare.model.errors import Fault
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import JobName
from tocsin.declare.settings import Settings
from tocsin.declare.sinks import SINKS
from tocsin.platform.heartbeat import NUMBER, heartbeat_file
from tocsin.supervise.job_states import Timing
from tocsin.supervise.planning.pod_resources import pod_resources
from tocsin.supervise.runners.process_labels import Labels
from tocsin.supervise.runners.runner import Launch

INSTANCE, PROCESS, COMPONENT = "tocsin/instance", "tocsin/process", "app.kubernetes.io/component"
"""Labels: the installation; the number of one start, which is also what its reports give as their pid; the kind."""
JOB, SPEC, STARTED = "tocsin/job", "tocsin/spec", "tocsin/started-at"
"""Annotations: what labels cannot hold, and the second of the start by the supervisor's clock."""
GRACE_SECONDS = 30  # longer than the policy waits before it ends a job by force
_SLOT = "tocsin/slot"
_LONGEST_NAME = 40  # and a hash; the controller makes labels of the name with 11 characters more, of 63
_PROBE_SECONDS = 20
_ADDRESSES = (("alerts", "database"), ("history", "catalog"), *(("views", sink) for sink in SINKS))


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
        Fault("the settings", f"holds a password; put it into the Secret {secret}, as a file", key=f"{block}.{key}")
        for block, key in _ADDRESSES
        if (address := getattr(getattr(settings, block), key, None)) and _has_password(address)
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
