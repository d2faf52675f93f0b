"""Run executors as pods of a Kubernetes cluster: what Spark is told about them, and why they do not come."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tocsin.project.blocks.runner_settings import CONTAINER_SECURITY, POD_SECURITY
from tocsin.project.blocks.spark_settings import IMAGES, ResourceSettings
from tocsin.project.settings import Settings
from tocsin.sparkjob.failures import root_cause

_DRIVER = "tocsin/driver"
_LABEL = f"spark.kubernetes.executor.label.{_DRIVER}"
"""Of the executors of one job of one installation; none of the labels by which jobs that are pods are found."""
_NAMESPACE, _TEMPLATE = "spark.kubernetes.namespace", "spark.kubernetes.executor.podTemplateFile"
_CPU, _OVERHEAD = "spark.kubernetes.executor.request.cores", "spark.executor.memoryOverhead"
# A slot waits more than it computes, so a pod requests no core for each, but what the pod of a job does.
_CPU_REQUESTED = "250m"
# Beside the heap: JVM, RocksDB and Python. Above it the kernel ends the container. Spark's own rule, 384 MB or a tenth
# of the heap, leaves no room for a worker of Python in each slot.
_BESIDES_HEAP_MB, _SLOT_MB = 500, 100
_OWN_TEMPLATE = "executor-template.json"
_SCRATCH = "/var/data/spark"
_TRACES = ("io.fabric8.kubernetes", "cluster.k8s")
_REFUSAL = re.compile(r"executing: (\w+) at: ([^\s?]+?)(\?\S*)?\. Message: (.*?)\.( Received status|$)", re.MULTILINE)
_LONGEST = 300


def pod_options(settings: Settings, job: str, resources: ResourceSettings, folder: Path) -> dict[str, str]:
    """Return the options of Spark for executors in pods, each of which the user may override.

    `folder` keeps the template of their pods as long as the session lives.
    """
    runner, spark = settings.runner, settings.spark
    (template := folder / _OWN_TEMPLATE).write_text(json.dumps(_template(settings)), encoding="utf-8")
    options = {
        _LABEL: hashlib.sha256(f"{settings.local_id} {job}".encode()).hexdigest()[:16],
        _TEMPLATE: str(template),
        _CPU: _CPU_REQUESTED,
        _OVERHEAD: f"{_BESIDES_HEAP_MB + _SLOT_MB * resources.cores}m",
        # Else it is the folder of the driver, which may lie in a volume that all of them share.
        "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path": _SCRATCH,
        # Else a session begins half a minute later where there is no room, and nobody is told why.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        # Else three pods that are refused or lost, within the weeks that a job runs, end its session.
        "spark.executor.maxNumFailures": str(2**31 - 1),
        # Without these it needs rights on pods alone.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }
    if runner.kind == "kubernetes":
        options |= {_NAMESPACE: runner.namespace, IMAGES[0]: str(runner.image)}
    if spark.driver_pod is not None:
        options["spark.kubernetes.driver.pod.name"] = spark.driver_pod
    return options


def remove_former(session: SparkSession) -> None:
    """Remove the executors of earlier sessions of this job: those of a killed one stay, ended, if no pod owns them."""
    label, own = _conf(session).get(_LABEL), session.sparkContext.applicationId
    pods = _client(session).pods().inNamespace(_namespace(session))
    pods.withLabelSelector(f"{_DRIVER}={label},spark-app-selector!={own}").delete()


def shortage(session: SparkSession) -> str:
    """Say why executors are missing, in the words of the API: of their pods, or why it takes none; "" if unknown."""
    path = f"/api/v1/namespaces/{_namespace(session)}/pods"
    selector = quote(f"spark-app-selector={session.sparkContext.applicationId}")
    try:
        found = json.loads(_client(session).raw(f"{path}?labelSelector={selector}"))["items"]
        if not found and (tried := _tried(session)) is not None:
            _client(session).raw(f"{path}?dryRun=All", "POST", json.dumps(tried))
    except Py4JJavaError as error:
        return refusal(error)
    return next(filter(None, (look(pod["status"]) for look in (_waits_for, _ended_with) for pod in found)), "")


def refusal(error: Py4JJavaError) -> str:
    """Read what the API has answered out of an error of Spark; "" if it is of something else."""
    text = str(error)
    if not any(trace in text for trace in _TRACES):
        return ""
    answer = _REFUSAL.search(text)
    return f"{answer[1]} {answer[2]}: {answer[4]}"[:_LONGEST] if answer else root_cause(error)


def _template(settings: Settings) -> dict[str, Any]:
    """Write what Spark does not by itself: the restricted standard of pods, and the volumes of jobs that are pods."""
    container: dict[str, Any] = {"name": "executor", "securityContext": CONTAINER_SECURITY}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "containers": [container],
    }
    if settings.runner.kind == "kubernetes":
        spec["serviceAccountName"] = settings.runner.service_account
        spec["volumes"], container["volumeMounts"] = settings.runner.volumes(str(settings.state.resolve()))
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def _tried(session: SparkSession) -> dict[str, Any] | None:
    """Write a pod that is refused for the reasons for which executors are; None if their template is not ours."""
    conf = _conf(session)
    if (template := Path(conf.get(_TEMPLATE))).name != _OWN_TEMPLATE:
        return None
    pod: dict[str, Any] = json.loads(template.read_text(encoding="utf-8"))
    memory = f"{conf.getSizeAsMb('spark.executor.memory') + conf.getSizeAsMb(_OVERHEAD)}Mi"
    resources = {"requests": {"cpu": conf.get(_CPU), "memory": memory}, "limits": {"memory": memory}}
    pod["metadata"] = {"name": "tocsin-executor"}
    pod["spec"]["containers"][0] |= {"image": "any", "resources": resources}
    return pod


def _waits_for(status: dict[str, Any]) -> str:
    waits = [one["state"]["waiting"] for one in status.get("containerStatuses", ()) if "waiting" in one["state"]]
    waits += [one for one in status.get("conditions", ()) if one["status"] == "False"]
    return f"{waits[0].get('reason')}: {waits[0].get('message', '')}"[:_LONGEST] if waits else ""


def _ended_with(status: dict[str, Any]) -> str:
    ends = [one["state"].get("terminated") for one in status.get("containerStatuses", ())]
    told = "an executor has ended with code {}; can it reach the job at spark.driver_host?"
    return next((told.format(end["exitCode"]) for end in ends if end), "")


def _namespace(session: SparkSession) -> str:
    return str(_conf(session).get(_NAMESPACE, "default"))


def _conf(session: SparkSession) -> Any:
    return session.sparkContext._jsc.sc().conf()


def _client(session: SparkSession) -> Any:
    """Take Spark's own client, so that the login is the same."""
    return session.sparkContext._jsc.sc().schedulerBackend().kubernetesClient()
