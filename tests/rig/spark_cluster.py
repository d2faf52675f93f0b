"""A standalone Spark cluster from the PySpark wheel: a master and workers as processes on loopback."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.rig.lacking import give_up
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import accepts, free_ports
from tocsin.platform import child_process
from tocsin.setup.java import find_java
from tocsin.setup.paths import here

START_SECONDS = 60.0
CORES = 6
"""Of each worker. More than the machine has: a real-time task that waits takes no time of a processor."""


class SparkCluster:
    """A master that keeps its applications over a restart, and workers; all end with the test process (Linux).

    For the workers, and their executors, the folder `hidden` is empty, as it is on a machine that does not share it.
    """

    def __init__(self, folder: Path, workers: int = 2, cores: int = CORES, hidden: Path | None = None) -> None:
        self._folder, self._java, self._cores, self._hidden = folder, find_java().home, cores, hidden
        self._port, self._page = free_ports(2)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._workers = [f"worker-{number}" for number in range(workers)]
        self.master = f"spark://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start all of it, and wait until the workers have registered."""
        self.start_master()
        for name in self._workers:
            self.start_worker(name)

    def start_master(self) -> None:
        """Start the master, and wait until it takes connections."""
        options = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)]
        self._start("master", "org.apache.spark.deploy.master.Master", options)
        await_that(lambda: accepts(self._port), START_SECONDS, lambda: self.log("master"))

    def start_worker(self, name: str = "worker-0") -> None:
        """Start a worker, and wait until the master knows it."""
        options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", str(self._cores), "--memory", "4g"]
        before = self.log("master").count("Registering worker")
        self._start(
            name, "org.apache.spark.deploy.worker.Worker", [*options, "-d", str(self._folder / name), self.master]
        )
        registered = lambda: self.log("master").count("Registering worker") > before  # noqa: E731
        await_that(registered, START_SECONDS, lambda: self.log(name)[-2000:])

    def kill(self, name: str) -> None:
        """End the master or a worker as a crash does; the executors of a worker end by themselves."""
        self._processes[name].kill()
        self._processes[name].wait()

    def workers(self) -> list[psutil.Process]:
        """The processes of the workers, which start the executors."""
        return [psutil.Process(self._processes[name].pid) for name in self._workers]

    def executors(self) -> list[psutil.Process]:
        """The processes of the executors, of all applications."""
        return [one for name in self._workers for one in self._executors_of(name)]

    def busy_worker(self, is_busy: Callable[[psutil.Process], bool]) -> str | None:
        """Name a worker with an executor for which `is_busy`; None if there is none."""
        for name in self._workers:
            for one in self._executors_of(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if is_busy(one):
                        return name
        return None

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        left = self.executors()
        for process in self._processes.values():
            process.kill()
            process.wait()
        for executor in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                executor.kill()

    def _executors_of(self, name: str) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._processes[name].pid).children(recursive=True)
            return [one for one in children if "java" in one.name()]
        return []

    def _start(self, name: str, program: str, options: list[str]) -> None:
        spark = here().package("pyspark")
        recovery = "-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory="
        environment = os.environ | {
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(spark),
            "SPARK_SCALA_VERSION": "2.13",  # else each executor ends with "Cannot find any build directories"
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": f"{recovery}{self._folder / 'recovery'}",
            "PYTHONPATH": "",
        }
        hiding = [] if self._hidden is None or name == "master" else _hiding(self._hidden)
        command = [*child_process.prefix(), *hiding, str(spark / "bin" / "spark-class"), program, *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _hiding(folder: Path) -> list[str]:
    """Give the words before a command for which `folder` is empty: it has a list of mounts of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    tried = subprocess.run([*own, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        give_up(f"a folder cannot be hidden here (root may): {tried.stderr.strip()}")
    return [*own, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]


@contextlib.contextmanager
def spark_cluster(
    folder: Path, workers: int = 2, cores: int = CORES, hidden: Path | None = None
) -> Iterator[SparkCluster]:
    """Run a cluster in `folder` for the block; each worker declares so many `cores`, and finds `hidden` empty."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = SparkCluster(folder, workers, cores, hidden)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
