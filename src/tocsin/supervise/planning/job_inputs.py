"""Name all that a job is started with, one text for each thing, and what of it changed. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from tocsin.declare.setting_blocks import PodSettings
from tocsin.declare.settings import Settings
from tocsin.declare.sinks import SINKS
from tocsin.supervise.job_states import Desired

Inputs = Mapping[str, str]
"""By name, such as `source logins.lateness`, `kafka.topic_prefix` or `declared.window`: the value as JSON."""

# Addresses that may hold a password; passwords themselves are in files, and never read for this.
_SECRET = {*SINKS}
_LOOPBACK = "127.0.0.1:"
_IMPLIED = {"version"}  # what changes with something else that is named


def inputs_of(
    prefix: str, values: BaseModel | Mapping[str, Any], *, only: set[str] | None = None, but: Set[str] | None = None
) -> dict[str, str]:
    """Name the fields of `values` after `prefix`: `only` some, or all `but` some."""
    plain = values.model_dump(include=only) if isinstance(values, BaseModel) else dict(values)
    return {f"{prefix}.{key}": _text(key, value) for key, value in plain.items() if key not in (but or ())}


def changed_inputs(before: Inputs, after: Inputs) -> list[str]:
    """List the names of what changed, without ports of a stack on this machine, which differ each time."""
    names = [name for name in {**after, **before} if before.get(name) != after.get(name) and name not in _IMPLIED]
    return [name for name in names if not _is_own_port(before.get(name), after.get(name))]


def _is_own_port(before: str | None, after: str | None) -> bool:
    return all(text is not None and text.strip('"').startswith(_LOOPBACK) for text in (before, after))


def digest(text: str) -> str:
    """Write a text that is too long to keep, or secret, as 12 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def spec_of(inputs: Inputs) -> str:
    """Hash `inputs`: another hash means that a job is to be replaced."""
    return digest(json.dumps(inputs, sort_keys=True))


def _text(key: str, value: object) -> str:
    """Write `value` as JSON that is the same in every process: sets in order."""
    text = json.dumps(_sorted(value), sort_keys=True, default=_plain)
    return json.dumps(digest(text)) if key in _SECRET and value is not None else text


def _sorted(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _sorted(item) for key, item in value.items()}
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else value


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    fields = getattr(value, "__dict__", None)
    return {key: item for key, item in fields.items() if item is not None} if fields else str(value)


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
