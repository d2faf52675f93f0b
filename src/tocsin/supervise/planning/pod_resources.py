"""What the pod of a job requests of a Kubernetes cluster, and the most that it may hold. Pure."""

from __future__ import annotations

from dataclasses import replace

from tocsin.declare.blocks.runner_settings import PodSettings
from tocsin.declare.settings import Settings
from tocsin.supervise.job_states import Desired
from tocsin.supervise.planning.job_inputs import inputs_of, spec_of

# At 200 lines a second, Spark jobs with a heap of 512 MB held 520 to 610 MB after two minutes and took 0.07 to 0.2 of a
# core; of the others the notifier held most, 170 MB, and the applier of a view took most, 0.03. Heaps fill later.
_SPARK_CPU, _SPARK_BESIDES_HEAP_MB = "250m", 500
_LIGHT = "50m", 250
_TIMES = 4  # so many times its request may a pod hold whose job is not restarted for its memory


def pod_resources(settings: Settings, kind: str, restarted_at: int | None = None) -> dict[str, dict[str, str]]:
    """Write the `resources` of the pod of a job.

    `restarted_at` is the bytes at which supervision restarts the job; None if it never does. The kernel ends a
    container only above that, because supervision says why, and lets the job end in order.
    """
    asked = settings.runner.pods.get(kind, PodSettings())
    if restarted_at is None:
        cpu, usual = _LIGHT
        requested = asked.memory_mb or usual
        limit = _TIMES * requested
    else:
        cpu, most = _SPARK_CPU, _in_mb(restarted_at)
        requested = asked.memory_mb or min(settings.spark.heap_mb + _SPARK_BESIDES_HEAP_MB, most)
        limit = max(most * 5 // 4, requested)
    return {"requests": {"cpu": asked.cpu or cpu, "memory": f"{requested}M"}, "limits": {"memory": f"{limit}M"}}


def with_pod(desired: Desired, settings: Settings, kind: str) -> Desired:
    """Make what its pod gets an input of a job, if a cluster runs it: a pod keeps what it was made with."""
    if settings.runner.kind != "kubernetes":
        return desired
    pod = pod_resources(settings, kind, desired.memory_bytes)
    requested = {"requested CPU": pod["requests"]["cpu"], "requested memory": pod["requests"]["memory"]}
    inputs = {**desired.inputs, **inputs_of("its pod", {**requested, "memory limit": pod["limits"]["memory"]})}
    return replace(desired, spec=spec_of(inputs), inputs=inputs)


def _in_mb(size: int) -> int:
    return -(-size // 1_000_000)
