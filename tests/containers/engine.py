"""podman with images, containers and networks of its own: nothing of the machine's other containers is touched."""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

# runc, since crun refuses cgroups v1; limits of files and processes that a root without all capabilities may set.
_CONTAINERS = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{run}/libpod"
[network]
network_config_dir = "{home}/networks"
"""
_STORAGE = """[storage]
driver = "overlay"
graphroot = "{home}/storage"
runroot = "{run}/storage"
"""


class Engine:
    """podman on a storage folder of its own.

    Attributes:
        home: holds the images and the configuration.
        environment: of podman and of what calls it.
    """

    def __init__(self, home: Path) -> None:
        """Write the configuration into `home`; what must not outlive a boot lies below /run."""
        self.home = home
        run = Path("/run") / f"tocsin-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"
        home.mkdir(parents=True, exist_ok=True)
        for name, text in (("containers.conf", _CONTAINERS), ("storage.conf", _STORAGE)):
            (home / name).write_text(text.format(home=home, run=run), encoding="utf-8")
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "DISABLE_HC_SYSTEMD": "true",  # podman would have systemd run the health checks
        }

    def __call__(self, *words: str | Path, seconds: float = 120, check: bool = True) -> str:
        """Run podman and return what it writes.

        Raises:
            AssertionError: it fails, and `check` is true; says what it wrote.
        """
        return self.run(["podman", *words], seconds=seconds, check=check).stdout

    def run(
        self, command: list[str | Path], *, seconds: float, check: bool = True, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that calls podman.

        Raises:
            AssertionError: it fails, and `check` is true; says what it wrote.
        """
        environment = self.environment | more.pop("env", {})
        done = subprocess.run(
            command, env=environment, timeout=seconds, check=False, capture_output=True, text=True, **more
        )
        words = " ".join(map(str, command))
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def has_image(self, name: str) -> bool:
        return self.run(["podman", "image", "exists", name], seconds=60, check=False).returncode == 0

    def inspect(self, container: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self("container", "inspect", container))
        return found[0]
