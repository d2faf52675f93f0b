"""Profiles of docker-compose.yml in podman, as a project of its own on free ports, started and removed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call

from tests.containers.engine import Engine
from tests.rig.waiting import await_that, patient
from tocsin.dev.servers.ports import free_ports
from tocsin.setup.paths import here

_FOLDERS = ("detectors", "sources", "expectations", "docs/run/observability")
_UP_SECONDS, _WAIT_SECONDS = 120, 240


class Composed:
    """The containers of one `with` block.

    Attributes:
        project: folder that holds the compose file, and the folders of the checkout that it mounts.
        services: the services of the profiles, as declared, in the order of their start.
        shared: the services whose process list or network others join, and with which they end.
        ports: the published ports, by the variable that sets each.
    """

    def __init__(self, engine: Engine, folder: Path, profiles: Sequence[str], without: Sequence[str] = ()) -> None:
        """Copy what is mounted into `folder`; nothing is started yet. The services `without` never are."""
        self._engine, self._profiles = engine, profiles
        self._name = f"tocsin-test-{uuid.uuid4().hex[:8]}"
        self.project = folder / self._name
        root = here().root
        for name in _FOLDERS:
            shutil.copytree(root / name, self.project / name)
        text = (root / "docker-compose.yml").read_text(encoding="utf-8")
        variables = sorted(set(re.findall(r"\$\{(\w+_PORT):-", text)))
        self.ports = dict(zip(variables, free_ports(len(variables)), strict=True))
        compose: dict[str, Any] = yaml.safe_load(text)
        declared: dict[str, dict[str, Any]] = compose["services"]
        chosen = {
            name: one
            for name, one in declared.items()
            if name not in without and not {*profiles}.isdisjoint(one.get("profiles", profiles))
        }
        graph = {name: {*one.get("depends_on", {})} for name, one in chosen.items()}
        self.services = {name: chosen[name] for name in TopologicalSorter(graph).static_order()}
        joined = (one[key] for one in chosen.values() for key in ("pid", "network_mode") if key in one)
        self.shared = {str(other).partition(":")[2] for other in joined}
        self._adapt(compose)

    def _adapt(self, compose: dict[str, Any]) -> None:
        """Write the file without what podman 4.3 does not know: `start_interval`, and `pid` of a service."""
        for service in compose["services"].values():
            service.get("healthcheck", {}).pop("start_interval", None)
            kind, _, other = service.get("pid", "").partition(":")
            if kind == "service":
                service["pid"] = f"container:{self.container(other)}"
        (self.project / "docker-compose.yml").write_text(yaml.safe_dump(compose), encoding="utf-8")

    def __enter__(self) -> Composed:
        return self

    def __exit__(self, *_: object) -> None:
        self._compose("down", "--volumes", "--timeout", "5", check=False)
        self._engine("volume", "prune", "--force", check=False)  # those without a name, which `down` leaves

    def container(self, service: str) -> str:
        return f"{self._name}_{service}_1"

    def lasting(self, image: str = "") -> list[str]:
        """The services that run on, of an image whose name begins so."""
        return [
            name for name, one in self.services.items() if one["restart"] != "no" and one["image"].startswith(image)
        ]

    def up(self) -> None:
        """Start each service when what it waits for is as it must be.

        podman ignores conditions of `depends_on`, so they are kept here.
        """
        for name, service in self.services.items():
            for needed, how in service.get("depends_on", {}).items():
                self._await(needed, how["condition"])
            self._compose("up", "--detach", "--no-build", "--no-deps", name)
        for name in self.services:
            self._await(name, "service_healthy" if name in self.lasting() else "service_completed_successfully")

    def _await(self, service: str, condition: str) -> None:
        if condition == "service_healthy":
            self.await_health(service)
        elif condition == "service_completed_successfully":
            await_that(lambda: self.state(service)["Status"] == "exited", _WAIT_SECONDS, lambda: self.log(service))
            assert self.state(service)["ExitCode"] == 0, f"{service} failed\n{self.log(service)}"

    def await_health(self, service: str, when: str = "") -> None:
        """Wait until the health check of a service succeeds; podman runs it when asked. `when` is for the error."""
        command: list[str | Path] = ["podman", "healthcheck", "run", self.container(service)]

        def healthy() -> bool:
            try:
                return self._engine.run(command, seconds=_WAIT_SECONDS, check=False).returncode == 0
            except subprocess.TimeoutExpired:
                return False

        await_that(healthy, _WAIT_SECONDS, lambda: f"{service} is not healthy {when}\n{self.log(service)}", every=1.0)

    def state(self, service: str) -> dict[str, Any]:
        """What podman says about the container's main process: `Status`, `Pid`, `ExitCode`, ..."""
        found: dict[str, Any] = self._engine.inspect(self.container(service))["State"]
        return found

    def published(self, service: str) -> list[str]:
        """The addresses of the machine on which the container listens."""
        ports = self._engine.inspect(self.container(service))["NetworkSettings"]["Ports"] or {}
        return [one["HostIp"] for bound in ports.values() for one in bound or []]

    def execute(self, service: str, *words: str) -> str:
        """Run a command in the container and return its output.

        Raises:
            AssertionError: it fails; says what it wrote.
        """
        return self._engine("exec", self.container(service), *words, seconds=patient(_WAIT_SECONDS))

    def put(self, service: str, path: str, text: str) -> None:
        file = self.project / Path(path).name
        file.write_text(text, encoding="utf-8")
        self._engine("cp", file, f"{self.container(service)}:{path}")

    def kill(self, service: str) -> None:
        """Kill the main process as a crash would; podman takes a kill of its own for a wish to stop."""
        before = self.state(service)["Pid"]
        os.kill(before, signal.SIGKILL)
        await_that(
            lambda: self.state(service)["Pid"] not in {0, before}, _WAIT_SECONDS, lambda: self.log(service), every=0.5
        )

    def stop(self, service: str) -> int:
        """Stop as `docker compose stop` does, with the service's time for it; returns the exit code."""
        seconds = self.services[service].get("stop_grace_period", "10s").removesuffix("s")
        self._engine("stop", "--time", seconds, self.container(service))
        return int(self.state(service)["ExitCode"])

    def log(self, service: str) -> str:
        done = self._engine.run(["podman", "logs", "--tail", "40", self.container(service)], seconds=60, check=False)
        return done.stdout + done.stderr

    def _compose(self, *words: str, check: bool = True) -> None:
        program = self._engine.home / "venv" / "bin" / "podman-compose"
        command: list[str | Path] = [program, "--project-name", self._name, "--in-pod=false"]
        environment = {name: str(port) for name, port in self.ports.items()}
        self._engine.run(
            [*command, *(word for profile in self._profiles for word in ("--profile", profile)), *words],
            seconds=_UP_SECONDS,
            check=check,
            cwd=self.project,
            env=environment,
        )
