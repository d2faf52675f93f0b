"""The servers of the stack, kept running like jobs, and the topics that the jobs need."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.settings import Settings
from tocsin.dev.servers import kafka_server
from tocsin.dev.servers.sink_servers import SinkServers
from tocsin.dev.startup_progress import Part
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.kafka.topics import TopicSpec, ensure_topics, wanted_topics
from tocsin.supervise.job_states import Desired, Start, Timing
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.log_files import rotate
from tocsin.supervise.runners.runner import Launch
from tocsin.supervise.supervisor import JobGroup, Supervisor

TOPICS = "topics"
_TIMING = Timing(first_delay=1.0, longest_delay=15.0, crash_loop_window=120.0, stagger=0.0)
_STOP_SECONDS = 15.0
_LOG_LINES = 15


class Server(Protocol):
    """One server; see `tocsin.dev.servers.kafka_server.Kafka`."""

    def launch(self, instance: str) -> Launch:
        """Describe the process to start.

        Raises:
            ConfigError: the set-up lacks something, or what it needs cannot be made.
            OSError: its folder cannot be written.
        """

    def waiting_for(self) -> str | None:
        """Name what it still lacks to serve; None when nothing."""


class Servers:
    """Kafka, the mail sink, Airflow if it is wanted, and those in which views are kept, once a view names them.

    `announced` tells whether their addresses are published.
    """

    def __init__(self, settings: Settings, instance: str, servers: Mapping[str, Server], sinks: SinkServers) -> None:
        """Start nothing yet; `servers` in the order of their start, `sinks` behind them. Raises as `Server.launch`."""
        self.announced = False
        self._settings, self._catalog = settings, FollowedCatalog(settings)
        self._instance, self._sinks = instance, sinks
        self._servers: dict[str, Server] = {}
        self._launches: dict[str, Launch] = {}
        self._faults: dict[str, str] = {}
        self._runner = LocalRunner(instance, settings.log, tethered=True)
        group = JobGroup(
            name="servers", state=settings.state, launch=lambda start: self._launches[start.job], timing=_TIMING
        )
        self._supervisor = Supervisor(group, self._runner)
        self._supervisor.excuse_ends()
        self._desired: dict[str, Desired] = {}
        self._waiting: dict[str, str | None] = {TOPICS: "its start"}
        self._topics = DeclaredTopics(settings)
        for name, server in servers.items():
            self._add(name, server)

    def tick(self) -> bool:
        """Start what is not there; returns whether all were ready once and the topics are there.

        Raises:
            OSError: the state folder cannot be written.
            TocsinError: a server keeps ending before it was ready for the first time.
        """
        catalog = self._catalog.read()
        self._add_needed(catalog)
        for action in self._supervisor.tick(self._desired):
            if isinstance(action, Start):
                self._waiting[action.job] = action.reason
        for name, past in self._supervisor.pasts().items():
            if past.condition.is_failing and not self.announced:
                tail = "\n".join(self._runner.logs(name, _LOG_LINES))
                raise TocsinError(
                    f"{name} does not start: {past.reason}; the end of {self._settings.log(name)}:\n{tail}"
                )
        for name, server in self._servers.items():
            rotate(self._settings.log(name))
            if self._waiting[name] is not None:
                self._waiting[name] = server.waiting_for()
        if self._waiting[kafka_server.NAME] is None:
            self._waiting[TOPICS] = self._topics.missing(catalog)
        return self.announced or not any(self._waiting.values())

    def lines(self) -> list[Part]:
        """Describe each server in a line."""
        parts = [
            Part(name, waits is None, "ready" if waits is None else f"waiting for {waits}")
            for name, waits in self._waiting.items()
        ]
        return [*parts, *(Part(name, False, fault, failing=True) for name, fault in self._faults.items())]

    def stop(self, *names: str) -> None:
        """Stop `names` at once; all, the last started first, when none is named."""
        for group in [names] if names else [[name] for name in reversed([*self._servers])]:
            self._supervisor.stop(_STOP_SECONDS, *group)

    def _add(self, name: str, server: Server) -> None:
        launch = server.launch(self._instance)
        self._servers[name], self._launches[name] = server, launch
        self._desired[name] = Desired(launch.labels.spec, beats=False)
        self._waiting[name] = "its start"

    def _add_needed(self, catalog: Catalog) -> None:
        """Take in the servers that views have come to name; what cannot start holds up nothing else."""
        needed = self._sinks.needed(catalog)
        self._faults = {name: fault for name, fault in self._faults.items() if name in needed}
        for name, server in needed.items():
            if name in self._servers or name in self._faults:
                continue
            if isinstance(server, str):
                self._faults[name] = server
                continue
            try:
                self._add(name, server)
            except (TocsinError, OSError) as error:
                self._faults[name] = str(error)


_PAUSE_SECONDS = 60.0  # after a refusal: somebody must change rights first


class DeclaredTopics:
    """The topics that jobs need."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, TopicSpec] | None = None
        self._refusal: str | None = None
        self._refused_at = 0.0

    @property
    def is_refused(self) -> bool:
        """Return whether waiting does not help: Kafka refuses to make the topics that are missing."""
        return self._refusal is not None

    def missing(self, catalog: Catalog) -> str | None:
        """Make topics that are not there yet; return why that failed, None when all are there.

        Asks Kafka only when other topics than the last time are wanted; after a refusal at most once a minute.
        """
        wanted = wanted_topics(self._settings, catalog)
        if wanted != self._made:
            if self._refusal is not None and time.monotonic() - self._refused_at < _PAUSE_SECONDS:
                return self._refusal
            try:
                ensure_topics(self._settings, catalog)
            except TransientError as error:
                return str(error)
            except TocsinError as error:
                self._refusal, self._refused_at = str(error), time.monotonic()
                return self._refusal
            self._refusal = None
            self._made = wanted
        return None
