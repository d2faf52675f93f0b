"""Prometheus for tests: Debian's, or the newer one that `make setup-prometheus` builds with Go."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rig.go_programs import build
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import free_ports
from tocsin.setup.paths import here

VERSION = "0.315.0"  # of the Go module: that of docker-compose.yml, 3.15.0
FOLDER = here().root / ".tocsin" / "prometheus"
PROGRAMS = ("prometheus", "promtool")


def program(name: str, *, newer: bool = False) -> str:
    """Find a program of Prometheus, or skip the test; with `newer` not Debian's, which is too old for some tests."""
    built, wanted = FOLDER / name, "make setup-prometheus" + ("" if newer else ", or apt install prometheus")
    found = str(built) if built.exists() else None if newer else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: {wanted}")
    return found


@dataclass(frozen=True)
class Prometheus:
    """A running server, at `url`."""

    url: str

    def answers(self) -> bool:
        try:
            return bool(self.ask("status/buildinfo"))
        except OSError:
            return False

    def ask(self, path: str) -> Any:
        """Return the data of an answer of its API; an OSError if it gives none, or does not understand."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """Evaluate an expression now; an OSError if it is not understood."""
        found: list[Any] = self.ask(f"query?query={urllib.parse.quote(expression)}")["result"]
        return found


@contextmanager
def prometheus(program: str, config: Path, *options: str) -> Iterator[Prometheus]:
    """Run it with a configuration, beside which it keeps its data."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={config.parent / 'data'}"]
    server = subprocess.Popen([*command, f"--web.listen-address={address}", *options], stderr=subprocess.DEVNULL)
    found = Prometheus(f"http://{address}")
    try:
        await_that(found.answers)
        yield found
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    # Without the discovery of targets in clouds, whose libraries are most of what would be compiled.
    tags = "remove_all_sd"
    build(FOLDER, "github.com/prometheus/prometheus", VERSION, [f"cmd/{one}" for one in PROGRAMS], tags=tags)
