"""The part of a Kubernetes node that a test can play: pods as processes of this machine, and their state in the API.

Each container is its command as a process, with its variables. It has no limits, no probes and no file system of its
own: every path is that of this machine. The files of a Secret appear where it is mounted if the test has made that
folder. A container that ends is started again, twice at once and then a second later each time.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.rig.kube_client import PODS, SECRETS, KubeClient, Refused

NODE = "node-1"


class PlayedNode:
    """Runs the pods of the namespace until the `with` block ends.

    Attributes:
        is_away: as a node that is cut off.
    """

    def __init__(self, client: KubeClient, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._running: dict[str, _Container] = {}
        self._evicted: set[str] = set()
        self._stop, self.is_away = threading.Event(), False
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
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            self._client.ask("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})
        own = pod["spec"]["containers"][0]
        environment = {one["name"]: one.get("value", "127.0.0.1") for one in own["env"]}
        self._mount_secrets(pod["spec"], own)
        folder = self._folder / pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        container = _Container(name, own["command"], environment, own["workingDir"], folder)
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
        if container.is_ended and not container.backs_off:
            container.restart()
        if not container.is_told:
            self._tell(pod, container)
        return None

    def _tell(self, pod: Any, container: _Container) -> None:
        """Report a container that runs; again and again while the API is away, as a kubelet does."""
        self._report(pod, container.status(), "Running")
        container.is_told = True

    def _remove(self, pod: Any) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._client.ask("DELETE", f"{PODS}/{pod['metadata']['name']}", options)

    def _mount_secrets(self, spec: Any, container: Any) -> None:
        places = {mount["name"]: Path(mount["mountPath"]) for mount in container.get("volumeMounts", ())}
        for volume in spec["volumes"]:
            if "secret" in volume and (folder := places[volume["name"]]).is_dir():
                data = self._client.ask("GET", f"{SECRETS}/{volume['secret']['secretName']}").get("data") or {}
                for name, value in data.items():
                    (folder / name).unlink(missing_ok=True)
                    (folder / name).write_bytes(base64.b64decode(value))
                    (folder / name).chmod(volume["secret"]["defaultMode"])

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
        self.pod, self.restarts, self.is_told = pod, 0, False
        self._command, self._environment, self._directory, self._folder = command, environment, directory, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._began = ""
        self._last: dict[str, Any] = {}
        self._deadline: float | None = None
        self._ended_at = 0.0

    @property
    def is_ended(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.kill()
        return self._process is not None and self._process.poll() is not None

    @property
    def backs_off(self) -> bool:
        """Return whether its node waits before it starts the container again."""
        self._ended_at = self._ended_at or time.monotonic()
        return self.restarts > 1 and time.monotonic() - self._ended_at < 1.0

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
        self._last, self._ended_at = self._ended(), 0.0
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
