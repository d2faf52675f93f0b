"""The servers of the stack, kept running like jobs, and the topics that the jobs need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tocsin.dev.servers import kafka_server
from tocsin.dev.startup_progress import Part
from tocsin.kafka.topics import ensure_topics
from tocsin.model.errors import TocsinError, TransientError
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import FollowedCatalog
from tocsin.supervision.job_states import Desired, Pace, Start
from tocsin.supervision.runners.local import LocalRunner
from tocsin.supervision.runners.log_rotation import rotate
from tocsin.supervision.runners.runner import Launch
from tocsin.supervision.supervisor import Charge, Supervisor

TOPICS = "topics"
_PACE = Pace(first_delay=1.0, longest_delay=15.0, crash_loop_window=120.0, stagger=0.0)
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
    """Kafka, the mail sink, and Airflow if it is wanted.

    Attributes:
        announced: whether others were told where they are.
    """

    def __init__(self, settings: Settings, instance: str, servers: Mapping[str, Server]) -> None:
        """Nothing is started yet; `servers` in the order of their start.

        Raises:
            ConfigError: the set-up lacks something, or Kafka's storage cannot be made.
        """
        self.announced = False
        self._settings, self._catalog = settings, FollowedCatalog(settings)
        self._servers = servers
        self._launches = {name: server.launch(instance) for name, server in self._servers.items()}
        self._runner = LocalRunner(instance, settings.log, tethered=True)
        charge = Charge(
            name="servers", state=settings.state, launch=lambda start: self._launches[start.job], pace=_PACE
        )
        self._supervisor = Supervisor(charge, self._runner)
        self._supervisor.excuse_ends()
        self._desired = {name: Desired(one.labels.spec, beats=False) for name, one in self._launches.items()}
        self._waiting: dict[str, str | None] = dict.fromkeys([*self._servers, TOPICS], "its start")
        self._sources: frozenset[str] | None = None

    def tick(self) -> bool:
        """Start what is not there; returns whether all were ready once and the topics are there.

        Raises:
            OSError: the state folder cannot be written.
            TocsinError: a server keeps ending before it was ready for the first time.
        """
        for action in self._supervisor.tick(self._desired):
            if isinstance(action, Start):
                self._waiting[action.job] = action.reason
        for name, past in self._supervisor.pasts().items():
            if past.is_failing and not self.announced:
                tail = "\n".join(self._runner.logs(name, _LOG_LINES))
                raise TocsinError(
                    f"{name} does not start: {past.reason}; the end of {self._settings.log(name)}:\n{tail}"
                )
        for name, server in self._servers.items():
            rotate(self._settings.log(name))
            if self._waiting[name] is not None:
                self._waiting[name] = server.waiting_for()
        if self._waiting[kafka_server.NAME] is None:
            self._ensure_topics()
        return self.announced or not any(self._waiting.values())

    def lines(self) -> list[Part]:
        """Describe each server in a line."""
        return [
            Part(name, waits is None, "ready" if waits is None else f"waiting for {waits}")
            for name, waits in self._waiting.items()
        ]

    def stop(self, *names: str) -> None:
        """Stop `names` at once; all, the last started first, when none is named."""
        for group in [names] if names else [[name] for name in reversed([*self._servers])]:
            self._supervisor.stop(_STOP_SECONDS, *group)

    def _ensure_topics(self) -> None:
        """Make the topics of all declared sources, again whenever these are others."""
        catalog = self._catalog.read()
        sources = frozenset(catalog.sources)
        if sources == self._sources:
            return
        try:
            ensure_topics(self._settings, catalog)
        except TransientError as error:
            self._waiting[TOPICS] = str(error)
        else:
            self._sources, self._waiting[TOPICS] = sources, None
