"""Where measurements happen: one broker, and for each a site with its own topics, project and state folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.processes import Program, await_that
from tocsin.declare.blocks.spark_settings import EngineSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import Names
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.kafka_server import Kafka
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.setup.java import Java, find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_launch
from tocsin.supervise.runners.job_children import JobChildren
from tocsin.supervise.runners.runner import Labels

_SOURCE = "logins"


@dataclass(frozen=True)
class Site:
    """The place of one measurement.

    Attributes:
        name: also the prefix of its topics.
        folder: project and state lie below.
        settings: of its jobs.
        source: name of its source.
    """

    name: str
    folder: Path
    settings: Settings
    source: str

    @property
    def names(self) -> Names:
        """Names of its topics."""
        return self.settings.names

    @property
    def log(self) -> Path:
        """Log of its contestant."""
        return self.folder / "log.txt"

    def runs(self, *jobs: str) -> bool:
        """Whether each of `jobs` says that it runs, and drains nothing."""
        return all(self._state(job) is JobState.RUNNING for job in jobs)

    def works(self, job: str) -> bool:
        """Whether `job` says that it runs or drains."""
        return self._state(job) in (JobState.RUNNING, JobState.DRAINING)

    def _state(self, job: str) -> JobState | None:
        beat = read_beat(self.settings.state, job)
        return None if beat is None else beat.report.state


@dataclass(frozen=True)
class Rig:
    """One broker and the tools of the measurements.

    Attributes:
        kafka: how to reach the broker.
        folder: everything that the measurements write.
        java: to run things with; a JDK.
        broker: the broker's process.
        children: starts jobs.
    """

    kafka: KafkaSettings
    folder: Path
    java: Java
    broker: Program
    children: JobChildren

    @property
    def servers(self) -> str:
        """The broker."""
        return self.kafka.bootstrap_servers

    @property
    def javac(self) -> Path:
        """The compiler."""
        return self.java.runtime / "bin" / "javac"

    @property
    def classes(self) -> Path:
        """Folder of the compiled peer."""
        return self.folder / "classes"

    def site(
        self,
        name: str,
        detectors: Mapping[str, str],
        *,
        source: Path | None = None,
        lies_in_the_past: bool = False,
        **settings: bool | str,
    ) -> Site:
        """A new site with the file of a `source`, that of `logins` if None, and `detectors`, name to text of the file.

        `engine` says whether jobs share one (no), and `latency` is that of `SparkSettings` ("10 ms").
        With `lies_in_the_past` the records of its events topic keep the times that the load gives them. Everything else
        is as `tocsin dev` makes it.
        """
        folder = self.folder / "sites" / name
        shutil.rmtree(folder, ignore_errors=True)
        for kind in ("sources", "detectors"):
            (folder / "project" / kind).mkdir(parents=True)
        source = source or here().root / "sources" / f"{_SOURCE}.toml"
        shutil.copy(source, folder / "project" / "sources")
        for detector, text in detectors.items():
            (folder / "project" / "detectors" / f"{detector}.py").write_text(text, encoding="utf-8")
        kafka = self.kafka.model_copy(update={"topic_prefix": f"{name}."})
        own = Settings(
            project=folder / "project",
            state=folder / "state",
            instance="bench",
            kafka=kafka,
            spark=SparkSettings.model_validate({"latency": settings.get("latency", "10 ms")}),
            engine=EngineSettings(enabled=bool(settings.get("engine"))),
        )
        catalog = read_catalog(own.project)
        if lies_in_the_past:
            self._keep_times(own.names.events(source.stem), catalog.source(source.stem).partitions)
        ensure_topics(own, catalog)
        return Site(name, folder, own, source.stem)

    def source(self, partitions: int) -> Path:
        """Write the file of `logins` with so many partitions."""
        path = self.folder / f"{_SOURCE}.toml"
        declared = (here().root / "sources" / path.name).read_text(encoding="utf-8")
        path.write_text(declared.replace("partitions = 2\n", f"partitions = {partitions}\n"), encoding="utf-8")
        return path

    def job(self, site: Site, job: str, others: Callable[[], list[psutil.Process]] = list) -> Program:
        """Start one of Tocsin's jobs, as supervision does; `others` work for it elsewhere."""
        launch = job_launch(site.settings, Labels(f"bench-{site.name}", job, "bench"), self.java.home)
        begin = partial(self.children.start, launch, launch.environment)
        return Program(launch.command, launch.log, launch.environment, others, begin)

    def _keep_times(self, topic: str, partitions: int) -> None:
        client = AdminClient(self.kafka.for_librdkafka())
        kept = {"message.timestamp.type": "CreateTime"}
        client.create_topics([NewTopic(topic, partitions, 1, config=kept)])[topic].result(30)


@contextmanager
def opened(folder: Path) -> Iterator[Rig]:
    """A rig whose broker runs until the end of the `with` block, with all it writes below `folder`.

    Raises:
        ConfigError: there is no JDK, or set-up is not complete.
    """
    java = find_java()
    if not (java.runtime / "bin" / "javac").exists():
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
        children = JobChildren(folder / "job_servers", tied=True)
        yield Rig(kafka.client, folder, java, broker, children)
