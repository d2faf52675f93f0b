"""One Kafka broker in KRaft mode, on loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.dev.servers.ports import LOOPBACK, accepts, free_ports
from tocsin.setup.java import Java, find_java
from tocsin.setup.paths import here
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch

NAME = "kafka"
_FORMAT_SECONDS, _START_SECONDS = 60, 120

_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
# One node: nothing to replicate to.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# After a crash the controller refuses the broker until its old session has timed out (9 s by default).
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=1000
# A small machine: the cleaner alone would take 128 MB of heap by default.
log.cleaner.dedupe.buffer.size=16777216
log.segment.bytes=67108864
num.network.threads=2
num.io.threads=4
"""

_LOGGING = """rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %-5p %c{1}: %m%n
"""

# 290 MB resident, ready after 2 s. With the second compiler requests take a third less CPU from the first minute on.
_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")


@dataclass(frozen=True)
class Kafka:
    """The broker of one state folder; `folder` holds its data, its configuration and its cluster id."""

    folder: Path
    log: Path
    port: int
    controller_port: int
    java: Java

    @property
    def client(self) -> KafkaSettings:
        """Give the address of the broker."""
        return KafkaSettings(bootstrap_servers=f"{LOOPBACK}:{self.port}")

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; formats its storage the first time (2 s). Errors as of `Server.launch`."""
        self._write_configuration()
        if not (self._data / "meta.properties").exists():
            self._format()
        spec = hashlib.sha256(f"{self._properties(self._data)}{self.java.executable}{_JVM}".encode()).hexdigest()[:12]
        labels = Labels(instance, NAME, spec)
        options = [labels.java_property(), f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        command = self._java(*_JVM, *options, "kafka.Kafka", str(self.folder / "server.properties"))
        return Launch(labels=labels, command=command, environment=_environment(), directory=self.folder, log=self.log)

    def waiting_for(self) -> str | None:
        """Name what it still lacks to serve clients; None when nothing."""
        if not accepts(self.port):
            return f"port {self.port}"
        try:
            metadata = AdminClient(self.client.for_librdkafka()).list_topics(timeout=2.0)
        except KafkaException:
            return "its metadata"
        if not metadata.brokers:
            return "its registration"
        partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
        return "leaders of its partitions" if any(partition.leader < 0 for partition in partitions) else None

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _write_configuration(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "server.properties").write_text(self._properties(self._data), encoding="utf-8")
        (self.folder / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")

    def _properties(self, data: Path) -> str:
        escaped = json.dumps(str(data.absolute()))[1:-1]  # Java reads the file as Latin-1, with escapes as in JSON
        return _PROPERTIES.format(host=LOOPBACK, port=self.port, controller_port=self.controller_port, data=escaped)

    def _format(self) -> None:
        """Format beside the place and then rename, so that an interrupted format leaves nothing half done."""
        if "," in str(self.folder.absolute()):
            raise ConfigError.one(self.folder, "Kafka takes a comma in its path for the end of one; set TOCSIN_STATE")
        draft = self.folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        configuration = self.folder / "format.properties"
        configuration.write_text(self._properties(draft), encoding="utf-8")
        cluster = f"--cluster-id={self._cluster_id()}"  # in one word, for it may begin with a dash
        words = ("format", cluster, "--config", str(configuration))
        done = subprocess.run(
            self._java(*_JVM, "kafka.tools.StorageTool", *words),
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=_FORMAT_SECONDS,
            start_new_session=True,  # Ctrl-C is for the launcher alone
            check=False,
        )
        if done.returncode:
            output = (done.stderr or done.stdout).strip()
            raise ConfigError.one(self.folder, f"Kafka's storage cannot be formatted there: {output}")
        configuration.unlink()
        draft.rename(self._data)

    def _cluster_id(self) -> str:
        return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    def _java(self, *words: str) -> tuple[str, ...]:
        jars = here().jars("broker")
        if not jars.is_dir():
            raise ConfigError.one(jars, "is not there; run: make setup")
        return (str(self.java.executable), "-cp", f"{jars}/*", *words)


@contextlib.contextmanager
def temporary_broker(folder: Path, purpose: str) -> Iterator[KafkaSettings]:
    """Run a broker on free ports of loopback; `purpose` marks its process, `folder` keeps its data.

    Raises:
        ConfigError: its storage cannot be formatted.
        TransientError: it does not start; says what it wrote last.
    """
    port, controller_port = free_ports(2)
    instance = f"{purpose}-{port}"  # two brokers for one purpose do not end each other
    server = Kafka(folder, folder / "kafka.log", port, controller_port, find_java())
    runner = LocalRunner(instance, lambda _: server.log, tethered=True)
    runner.start(server.launch(instance))
    try:
        deadline = time.monotonic() + _START_SECONDS
        while (missing := server.waiting_for()) is not None:
            if time.monotonic() > deadline or not runner.list():
                last = "\n".join(server.log.read_text().splitlines()[-20:])
                raise TransientError(f"the broker lacks {missing}: {last}")
            time.sleep(0.1)
        yield server.client
    finally:
        for process in runner.list():
            runner.stop(process, force=True)


def _environment() -> dict[str, str]:
    """Of the broker: nothing that a user's shell sets for another Kafka or Java."""
    names = ("PATH", "HOME", "TMPDIR", "LANG")
    own = {"TZ": "UTC", "MALLOC_ARENA_MAX": "2", "LC_ALL": "C.UTF-8"}  # in which Java reads and writes names of files
    return {name: os.environ[name] for name in names if name in os.environ} | own
