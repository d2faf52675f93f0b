"""YARN on loopback: its ResourceManager and one NodeManager, as processes; `make setup-yarn` fetches them."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import psutil
import pytest

from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import free_ports
from tocsin.provision.java import find_java
from tocsin.provision.paths import here
from tocsin.runtime import child_process

START_SECONDS = 120.0
_MEMORY_MB = 6_000
_CLIENTS = ("hadoop-client-", "slf4j-", "log4j-", "jcl-over-slf4j-")
_DAEMONS = "org.apache.hadoop.yarn.server"
_PORTS = (
    "resourcemanager.address", "resourcemanager.scheduler.address", "resourcemanager.resource-tracker.address",
    "resourcemanager.admin.address", "resourcemanager.webapp.address", "nodemanager.address",
    "nodemanager.localizer.address", "nodemanager.webapp.address",
)  # fmt: skip


class YarnCluster:
    """The two daemons, which end with the test process (Linux), and what they start.

    Attributes:
        configuration: the folder for HADOOP_CONF_DIR.
    """

    def __init__(self, folder: Path, archives: Path) -> None:
        """Write the configuration to `folder`; `archives` holds what `make setup-yarn` has fetched."""
        self._folder, self._archives, self._java = folder, archives, find_java()
        self._processes: dict[str, psutil.Popen] = {}
        self.configuration = folder / "conf"
        self.configuration.mkdir(parents=True)
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self._page = ports["resourcemanager.webapp.address"]
        fifo = f"{_DAEMONS}.resourcemanager.scheduler.fifo.FifoScheduler"
        options = {f"yarn.{key}": f"127.0.0.1:{port}" for key, port in ports.items()} | {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.scheduler.class": fifo,  # the usual one wants a file of queues
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.resource.memory-mb": str(_MEMORY_MB),
            "yarn.nodemanager.resource.cpu-vcores": "32",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
        }
        self._write("yarn-site.xml", options)
        self._write("core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})

    def start(self) -> None:
        """Start both, and wait until the node is there."""
        self.start_daemon("resourcemanager.ResourceManager")
        self.start_daemon("nodemanager.NodeManager")
        await_that(self._has_node, START_SECONDS, self.said)

    def start_daemon(self, program: str) -> None:
        """Start the ResourceManager or the NodeManager."""
        spark = sorted((here().package("pyspark") / "jars").glob("*.jar"))
        clients = [one for one in spark if one.name.startswith(_CLIENTS)]
        path = os.pathsep.join(map(str, [self.configuration, *clients, *sorted(self._archives.glob("*.jar"))]))
        options = ["-Xmx300m", "-XX:+UseSerialGC", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", path]
        command = [*child_process.prefix(), str(self._java.executable), *options, f"{_DAEMONS}.{program}"]
        environment = os.environ | {"JAVA_HOME": str(self._java.home)}
        with (self._folder / "daemons.log").open("ab") as log:
            self._processes[program] = psutil.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self, program: str) -> None:
        """End a daemon as a crash does."""
        self._processes[program].kill()
        self._processes[program].wait()

    def executors(self) -> list[psutil.Process]:
        """The processes of the executors, of all applications."""
        found = []
        for one in self.started():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends at this moment
                found += [one] if "java" in one.name() and "ExecutorBackend" in " ".join(one.cmdline()) else []
        return found

    def started(self) -> list[psutil.Process]:
        """What the node has started: executors, the master of each application, and the shells around them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(self._processes["nodemanager.NodeManager"].children(recursive=True))
        return []

    def said(self) -> str:
        """What the daemons have written."""
        return (self._folder / "daemons.log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End all of it."""
        left = self.started()
        for process in (*self._processes.values(), *left):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs([*self._processes.values(), *left], timeout=10)

    def _has_node(self) -> bool:
        assert all(process.poll() is None for process in self._processes.values()), self.said()
        url = f"http://127.0.0.1:{self._page}/ws/v1/cluster/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return bool(json.load(answer)["clusterMetrics"]["activeNodes"])
        return False

    def _write(self, name: str, options: dict[str, str]) -> None:
        told = (
            f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in options.items()
        )
        (self.configuration / name).write_text("\n".join(["<configuration>", *told, "</configuration>\n"]))


@contextlib.contextmanager
def yarn_cluster(folder: Path) -> Iterator[YarnCluster]:
    """Run YARN in `folder` for the block; the test is skipped where it was not fetched."""
    archives = here().jars("yarn")
    if not archives.exists():
        pytest.skip("YARN is missing: make setup-yarn")
    cluster = YarnCluster(folder, archives)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
