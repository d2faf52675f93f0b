"""The part of a Kubernetes node that a test can play: pods as processes of this machine, and their state in the API.

Each container is its command as a process, with the variables of its ConfigMap and Secret. It has no limits and no file
system of its own: the folder of an `emptyDir` is another one, every other path is that of this machine. The files of a
Secret appear where it is mounted if the test has made that folder. An image is the variables that it sets, among them
the PATH on which the container's words are found; a pod has an address of loopback for itself.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.rig.kube_client import CONFIG_MAPS, PODS, SECRETS, KubeClient, Refused

NODE = "node-1"


class PlayedNode:
    """Runs the pods of the namespace until the `with` block ends.

    Attributes:
        is_away: as a node that is cut off.
        is_full: no pod that comes finds room.
        images: the variables of each, by name; None for one that cannot be pulled. Those of jobs need none.
    """

    def __init__(self, client: KubeClient, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._running: dict[str, _Container] = {}
        self._evicted: set[str] = set()
        self._stop, self.is_away, self.is_full = threading.Event(), False, False
        self.images: dict[str, dict[str, str] | None] = {}
        self._addresses = (f"127.0.1.{number}" for number in itertools.count(1))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PlayedNode:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for container in self._running.values():
            container.kill()

    def log(self, pod: str, lines: int, *, previous: bool) -> str:
        """Return what the container of `pod` has printed; raises KeyError before it began."""
        container = next(one for one in reversed(self._running.values()) if one.pod == pod)
        run = container.restarts - 1 if previous else container.restarts
        text = container.log(run).read_text(encoding="utf-8")
        return "\n".join(text.splitlines()[-lines:]) + "\n" if text else ""

    def evict(self, pod: Any) -> None:
        """End a pod and leave it as failed, as a kubelet does that runs short of memory or disk."""
        self._evicted.add(pod["metadata"]["uid"])

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(Refused, OSError):  # another look follows
                if not self.is_away:
                    self._look()

    def _look(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._client.items(PODS)}
        for uid, pod in pods.items():
            container = self._running.get(uid)
            if container is None and not pod["metadata"].get("deletionTimestamp"):
                self._begin(pod)
            elif container is None:
                self._remove(pod)
            else:
                self._follow(pod, container)
        for uid in self._running.keys() - pods.keys():  # forgotten by the API, as by a deletion without grace
            self._running[uid].kill()

    def _begin(self, pod: Any) -> None:
        name = pod["metadata"]["name"]
        if self.is_full:
            what = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            what["message"] = "0/1 nodes are available: 1 Insufficient cpu."
            return self._patch(pod, {"conditions": [what]})
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            self._client.ask("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
        own = pod["spec"]["containers"][0]
        image, address = self.images.get(own["image"], {}), next(self._addresses)
        if image is None:
            waits = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{own["image"]}"'}
            return self._report(pod, {"state": {"waiting": waits}}, "Pending")
        try:
            environment = image | self._environment(pod, own, address)
            self._mount_secrets(pod["spec"], own)
        except Refused:
            waits = {"reason": "CreateContainerConfigError", "message": "its ConfigMap or its Secret is missing"}
            return self._report(pod, {"state": {"waiting": waits}}, "Pending")
        folder = self._folder / pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        once = [one["mountPath"] for one in own.get("volumeMounts", ()) if one["name"] == "once"]
        words = [*own.get("command", ()), *own.get("args", ())]
        command = [str(folder) if word in once else word for word in words]
        container = _Container(name, command, environment, own.get("workingDir"), folder)
        container.address = address
        container.begin()
        self._running[pod["metadata"]["uid"]] = container
        self._tell(pod, container)

    def _follow(self, pod: Any, container: _Container) -> None:
        since = pod["metadata"].get("deletionTimestamp")
        if pod["metadata"]["uid"] in self._evicted:
            container.kill()
            return self._report(pod, container.status(), "Failed", reason="Evicted")
        if since and not container.is_ended:
            container.stop(float(pod["metadata"].get("deletionGracePeriodSeconds", 30)))
        if container.is_ended and since:
            container.kill()
            self._report(pod, container.status(), "Succeeded")
            return self._remove(pod)
        if container.is_ended and pod["spec"].get("restartPolicy") == "Never":
            container.kill()
            if pod["status"]["phase"] == "Running":
                self._report(pod, container.status(), "Failed" if container.code else "Succeeded")
            return None
        if container.is_ended:
            container.restart()
        if not container.is_told:
            self._tell(pod, container)
        return None

    def _tell(self, pod: Any, container: _Container) -> None:
        """Report a container that runs; again and again while the API is away, as a kubelet does."""
        self._report(pod, container.status(), "Running", podIP=container.address)
        container.is_told = True

    def _remove(self, pod: Any) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._client.ask("DELETE", f"{PODS}/{pod['metadata']['name']}", options)

    def _environment(self, pod: Any, container: Any, address: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            if "configMapRef" in source:
                found |= self._client.ask("GET", f"{CONFIG_MAPS}/{source['configMapRef']['name']}").get("data") or {}
            else:
                found |= {name: value.decode() for name, value in self._secret(source["secretRef"]["name"]).items()}
        fields = {"metadata.name": pod["metadata"]["name"], "status.podIP": address}
        for one in container.get("env", ()):
            field = one["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in one else None
            found[one["name"]] = one["value"] if field is None else fields[field]
        return found

    def _mount_secrets(self, spec: Any, container: Any) -> None:
        places = {mount["name"]: Path(mount["mountPath"]) for mount in container.get("volumeMounts", ())}
        for volume in spec["volumes"]:
            if "secret" in volume and (folder := places[volume["name"]]).is_dir():
                for name, value in self._secret(volume["secret"]["secretName"]).items():
                    (folder / name).unlink(missing_ok=True)
                    (folder / name).write_bytes(value)
                    (folder / name).chmod(volume["secret"]["defaultMode"])

    def _secret(self, name: str) -> dict[str, bytes]:
        found = self._client.ask("GET", f"{SECRETS}/{name}").get("data") or {}
        return {key: base64.b64decode(value) for key, value in found.items()}

    def _report(self, pod: Any, status: Any, phase: str, **more: str) -> None:
        name = pod["spec"]["containers"][0]["name"]
        own = {"name": name, "image": "x", "imageID": "", "ready": phase == "Running", "restartCount": 0, **status}
        self._patch(pod, {"phase": phase, "containerStatuses": [own], **more})

    def _patch(self, pod: Any, status: Any) -> None:
        self._client.ask("PATCH", f"{PODS}/{pod['metadata']['name']}/status", {"status": status})


class _Container:
    """One container: the process that runs now, and how the one before ended."""

    def __init__(
        self, pod: str, command: list[str], environment: dict[str, str], directory: str | None, folder: Path
    ) -> None:
        self.pod, self.address, self.restarts, self.is_told = pod, "", 0, False
        self._command, self._environment, self._directory, self._folder = command, environment, directory, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._kill_at = ""
        self._last: dict[str, Any] = {}
        self._deadline: float | None = None

    @property
    def is_ended(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.kill()
        return self._process is not None and self._process.poll() is not None

    def log(self, run: int) -> Path:
        return self._folder / f"{run}.log"

    def begin(self) -> None:
        self._began = _now()
        with self.log(self.restarts).open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
            )

    def restart(self) -> None:
        self.kill()
        self._last = self._ended()
        self.restarts += 1
        self.is_told = False
        self.begin()

    def stop(self, seconds: float) -> None:
        """Ask it to stop, once; it is killed after `seconds`, counted from the first call, or from a shorter one."""
        deadline = time.monotonic() + seconds
        if self._deadline is None and self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def kill(self) -> None:
        """End all its processes, as the end of a container does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def status(self) -> dict[str, Any]:
        state = self._ended() if self.is_ended else {"running": {"startedAt": self._began}}
        return {"state": state, "lastState": {"terminated": None, **self._last}, "restartCount": self.restarts}

    @property
    def code(self) -> int:
        code = self._process.returncode if self._process is not None else 0
        return code if code >= 0 else 128 - code

    def _ended(self) -> dict[str, Any]:
        return {"terminated": {"exitCode": self.code, "startedAt": self._began, "finishedAt": _now()}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
