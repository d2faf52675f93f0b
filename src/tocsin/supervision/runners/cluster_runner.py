"""Jobs as StatefulSets of a Kubernetes cluster."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from tocsin.project.settings import Settings
from tocsin.runtime import process_exit
from tocsin.supervision.runners import cluster_api
from tocsin.supervision.runners.cluster_api import PODS, STATEFUL_SETS, ClusterApi, ClusterError, Object
from tocsin.supervision.runners.job_pod import (
    INSTANCE,
    JOB,
    PROCESS,
    SPEC,
    STARTED,
    Slot,
    objects_of,
    owned,
    slot_names,
)
from tocsin.supervision.runners.log_rotation import rotate, tail
from tocsin.supervision.runners.process_labels import Labels, instance_of
from tocsin.supervision.runners.runner import Launch, Process, ProcessUsage

_FORCED_SECONDS = 1  # never 0: that forgets a pod that its node may still run
_SIGNALLED = 128

log = structlog.get_logger()


class ClusterRunner:
    """Starts each process as a StatefulSet of one replica, and lists it until the cluster confirms that it is gone.

    A StatefulSet is never updated, but deleted and made anew; so one that somebody has changed can be told.
    """

    def __init__(self, settings: Settings, api: ClusterApi | None = None) -> None:
        """A runner for the jobs of `settings`, which name the cluster unless `api` does."""
        self._settings, self._instance = settings, instance_of(settings)
        self._api = api or ClusterApi(settings.runner)
        self._pods: Sequence[Object] = ()
        self._halves: set[int] = set()  # starts without a ConfigMap or Secret, whose pod would wait for good

    def start(self, launch: Launch) -> int:
        """See `Runner.start`. Refused while two processes of the job are there."""
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(launch.log)
        taken = {one["metadata"]["name"] for one in self._api.list(STATEFUL_SETS, self._labels())}
        free = next((name for name in slot_names(launch.labels) if name not in taken), None)
        if free is None:
            raise ClusterError(cluster_api.CONFLICT, f"two processes of {launch.labels.job} are in the cluster already")
        told = process_exit.variables(self._exit(launch.labels.job))
        slot = Slot(name=free, number=secrets.randbits(31) | 1, at=time.time())
        launch = replace(launch, environment={**launch.environment, **told})
        objects = objects_of(launch, self._settings, slot)
        made = self._api.create(STATEFUL_SETS, objects.stateful_set)
        try:
            self._api.create(cluster_api.CONFIG_MAPS, owned(objects.environment, made))
            self._api.create(cluster_api.SECRETS, owned(objects.secrets, made))
        except ClusterError:
            self._halves.add(slot.number)
            with contextlib.suppress(ClusterError):
                self._delete(made)
            raise
        return slot.number

    def stop(self, process: Process, *, force: bool = False) -> None:
        """See `Runner.stop`. Forced, its node has a second to end it; if the node is silent, it stays in the list."""
        try:
            for made in self._api.list(STATEFUL_SETS, self._labels(process.pid)):
                self._delete(made)
            for pod in self._api.list(PODS, self._labels(process.pid)) if force else ():
                options = {**_this(pod), "gracePeriodSeconds": _FORCED_SECONDS}
                self._api.delete(PODS, pod["metadata"]["name"], options)
        except ClusterError as error:
            log.error("stop failed", of=process.labels.job, pid=process.pid, error=str(error))

    def list(self) -> list[Process]:
        """See `Runner.list`. Without its leader is a pod whose job has ended, or of which an object is missing."""
        made = {_number(one): one for one in self._api.list(STATEFUL_SETS, self._labels())}
        self._pods = self._api.list(PODS, self._labels())
        pods = {_number(pod): pod for pod in self._pods}
        found = [
            _process(one, leader=not self._is_left(number, pods.get(number)), altered=_is_altered(one))
            for number, one in made.items()
        ]
        found += [_process(pod, leader=_is_going(pod)) for number, pod in pods.items() if number not in made]
        return sorted(found, key=lambda process: (process.labels.job, process.started_at, process.pid))

    def exit_code(self, job: str) -> int | None:
        """See `Runner.exit_code`. Of the pod that the last list saw; of one that is gone, as the job itself told it."""
        pod = self._last_pod(job)
        end = None if pod is None else _end(pod)
        if end is None:
            return process_exit.read(self._exit(job))
        code = int(end["exitCode"])
        return code if code <= _SIGNALLED else _SIGNALLED - code

    def usage(self, process: Process) -> ProcessUsage | None:
        """See `Runner.usage`. Not measured here: jobs report their memory and CPU themselves."""
        return None

    def logs(self, job: str, lines: int) -> Sequence[str]:
        """See `Runner.logs`. Of a pod from the API; of one that is gone from the state folder, which has all of it."""
        with contextlib.suppress(ClusterError):
            self._pods = self._api.list(PODS, self._labels())
            pod = self._last_pod(job)
            if pod is not None:
                waits = _status(pod).get("state", {}).get("waiting") or {}
                if _end(pod) is None and waits.get("message"):
                    return [f"{waits.get('reason', 'waits')}: {waits['message']}"]
                return self._api.log(pod["metadata"]["name"], lines, previous=_has_restarted(pod))
        return tail(self._settings.log(job), lines)

    def _labels(self, number: int | None = None) -> dict[str, str]:
        return {INSTANCE: self._instance} | ({} if number is None else {PROCESS: str(number)})

    def _is_left(self, number: int, pod: Object | None) -> bool:
        """Return whether the job in `pod` has ended, or cannot begin.

        A pod that is not there yet will come; one that goes is on its way.
        """
        return number in self._halves or (pod is not None and not _is_going(pod) and _end(pod) is not None)

    def _delete(self, made: Object) -> None:
        """Delete a StatefulSet; it stays until its pod has gone."""
        options = {**_this(made), "propagationPolicy": "Foreground"}
        self._api.delete(STATEFUL_SETS, made["metadata"]["name"], options)

    def _last_pod(self, job: str) -> Object | None:
        """Return the pod of the last start of `job`."""
        own = [pod for pod in self._pods if _note(pod, JOB) == job]
        return max(own, key=_started_at, default=None)

    def _exit(self, job: str) -> Path:
        """The file in which the last process of `job` tells its exit code."""
        return self._settings.log(job).with_suffix(".exit")


def _process(made: Object, *, leader: bool, altered: bool = False) -> Process:
    """Read a StatefulSet of ours, or a pod of one."""
    labels = Labels(made["metadata"]["labels"][INSTANCE], _note(made, JOB), _note(made, SPEC))
    return Process(labels, _number(made), _started_at(made), leader, altered)


def _number(made: Object) -> int:
    return int(made["metadata"]["labels"][PROCESS])


def _note(made: Object, key: str) -> str:
    return str((made["metadata"].get("annotations") or {}).get(key, ""))


def _started_at(made: Object) -> float:
    return float(_note(made, STARTED) or 0)


def _this(made: Object) -> dict[str, Any]:
    """Options of a deletion that spares another object of the same name."""
    return {"preconditions": {"uid": made["metadata"]["uid"]}}


def _is_going(made: Object) -> bool:
    return bool(made["metadata"].get("deletionTimestamp"))


def _is_altered(made: Object) -> bool:
    """Return whether somebody has changed the spec of a StatefulSet: a deletion counts as a change, and is none."""
    return made["metadata"].get("generation", 1) != 1 and not _is_going(made)


def _status(pod: Object) -> Mapping[str, Any]:
    """Return the status of the container, empty before its node has seen it."""
    statuses: Sequence[Mapping[str, Any]] = pod.get("status", {}).get("containerStatuses") or ()
    return statuses[0] if statuses else {}


def _has_restarted(pod: Object) -> bool:
    return bool((_status(pod).get("lastState") or {}).get("terminated"))


def _end(pod: Object) -> Mapping[str, Any] | None:
    """Return how the job in `pod` ended; its container, started again, only waits."""
    status = _status(pod)
    for state in (status.get("lastState") or {}, status.get("state") or {}):
        if state.get("terminated"):
            end: Mapping[str, Any] = state["terminated"]
            return end
    return None
