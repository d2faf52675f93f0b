"""Keep a broker for cases in real-time mode, from the first request on until the process ends."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

from tocsin.dev.servers.kafka_server import temporary_broker
from tocsin.project.setting_blocks import KafkaSettings

_SECONDS = 180


class CaseBroker:
    """A broker that starts in the background."""

    def __init__(self, folder: Path) -> None:
        """Start nothing; `folder` is for its data."""
        self._folder = folder
        self._ready: Future[KafkaSettings] = Future()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start it unless it has been started."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
            self._thread.start()

    def settings(self) -> KafkaSettings:
        """Wait for it; returns its address.

        Raises:
            ConfigError: it cannot be started on this machine.
            TransientError: it does not start; says what it wrote last.
        """
        self.begin()
        return self._ready.result(_SECONDS)

    def close(self) -> None:
        """End it."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # The broker ends with the thread that has started it, so this one stays.
        try:
            with temporary_broker(self._folder, "cases") as kafka:
                self._ready.set_result(kafka)
                self._ends.wait()
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(error)
