"""Where measurements happen: one broker, and for each a site with its own topics, project and state folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.processes import Program, await_that
from tocsin.errors import ConfigError
from tocsin.names import Names, file_name
from tocsin.provision.java import find_java
from tocsin.provision.paths import here
from tocsin.stack.kafka import Kafka
from tocsin.stack.ports import free_ports

_SOURCE = "logins"


@dataclass(frozen=True)
class Site:
    """The place of one measurement.

    Attributes:
        name: also the prefix of its topics.
        folder: project and state lie below.
        source: name of its source.
        partitions: of its raw, events and findings topics.
        environment: of its jobs.
    """

    name: str
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    source: str = _SOURCE
    partitions: int = 2

    @property
    def names(self) -> Names:
        """Names of its topics."""
        return Names(f"{self.name}.")

    @property
    def log(self) -> Path:
        """Log of its contestant."""
        return self.folder / "log.txt"


@dataclass(frozen=True)
class Rig:
    """One broker and the tools of the measurements.

    Attributes:
        servers: the broker.
        folder: everything that the measurements write.
        java, javac: executables; `javac` of a JDK.
    """

    servers: str
    folder: Path
    java: Path
    javac: Path

    @property
    def classes(self) -> Path:
        """Folder of the compiled peer."""
        return self.folder / "classes"

    def site(self, name: str, detectors: Mapping[str, str], *, lies_in_the_past: bool = False) -> Site:
        """A new site with the source `logins` of the checkout and `detectors`, name to text of the file.

        With `lies_in_the_past` the records of its events topic keep the times that the load gives them. Everything else
        is stamped by the broker.
        """
        folder = self.folder / "sites" / name
        shutil.rmtree(folder, ignore_errors=True)
        for kind in ("sources", "detectors"):
            (folder / "project" / kind).mkdir(parents=True)
        shutil.copy(here().root / "sources" / f"{_SOURCE}.toml", folder / "project" / "sources")
        for detector, text in detectors.items():
            (folder / "project" / "detectors" / f"{detector}.py").write_text(text, encoding="utf-8")
        environment = {
            "TOCSIN_PROJECT": str(folder / "project"),
            "TOCSIN_STATE": str(folder / "state"),
            "TOCSIN_INSTANCE": "bench",
            "TOCSIN_KAFKA__BOOTSTRAP_SERVERS": self.servers,
            "TOCSIN_KAFKA__TOPIC_PREFIX": f"{name}.",
            "JAVA_HOME": str(self.java.parent.parent),
            "SPARK_HOME": str(here().package("pyspark")),
            "PYSPARK_PYTHON": sys.executable,
        }
        site = Site(name, folder, environment)
        self._topics(site, lies_in_the_past)
        return site

    def job(self, site: Site, job: str) -> Program:
        """Start one of Tocsin's Spark jobs, `ingest:<source>` or `detector:<name>`."""
        kind, name = job.split(":")
        script = here().root / "spark_jobs" / ("ingest.py" if kind == "ingest" else "detect.py")
        return Program([sys.executable, script, name], site.folder / f"{file_name(job)}.log", site.environment)

    def _topics(self, site: Site, lies_in_the_past: bool) -> None:
        names, stamped = site.names, {"message.timestamp.type": "LogAppendTime"}
        kept = {"message.timestamp.type": "CreateTime"} if lies_in_the_past else stamped
        wanted = [
            NewTopic(names.raw(site.source), site.partitions, 1, config=stamped),
            NewTopic(names.events(site.source), site.partitions, 1, config=kept),
            NewTopic(names.quarantine(site.source), 1, 1, config=stamped),
            NewTopic(names.findings, site.partitions, 1, config=stamped),
            NewTopic(names.job_metrics, 1, 1, config=stamped),
        ]
        client = AdminClient({"bootstrap.servers": self.servers})
        for made in client.create_topics(wanted).values():
            made.result(30)


@contextmanager
def opened(folder: Path) -> Iterator[Rig]:
    """A rig whose broker runs until the end of the `with` block, with all it writes below `folder`.

    Raises:
        ConfigError: there is no JDK, or set-up is not complete.
    """
    java = find_java()
    javac = java.runtime / "bin" / "javac"
    if not javac.exists():
        need = "the Kafka Streams peer needs a JDK (Debian, Ubuntu: apt install openjdk-17-jdk-headless)"
        what = f"is Java {java.version} without a compiler; {need}"
        raise ConfigError.one(java.runtime, what)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "kafka", ignore_errors=True)
    port, controller_port = free_ports(2)
    kafka = Kafka(folder / "kafka", folder / "kafka.log", port, controller_port, java)
    launch = kafka.launch("bench")
    with Program(launch.command, launch.log, launch.environment) as broker:
        await_that(lambda: kafka.waiting_for() is None, 60, "the broker", broker)
        yield Rig(kafka.client.bootstrap_servers, folder, java.executable, javac)
