"""The engine of `tocsin test`, and the broker beside it: `python -m tocsin.cases.spark.case_engine PROJECT FOLDER`.

All that it has lies in FOLDER, which it removes at its end. There is one for each project and user.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.servers.kafka_server import temporary_broker
from tocsin.dev.servers.ports import accepts
from tocsin.job import exit_code_of
from tocsin.platform import logs, state_file
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.engine.attachment import Attachment, engine_code
from tocsin.spark.engine.warm_engine import attach_or_start, run_until_idle
from tocsin.spark.session import engine_session

JOB = "cases"
_POOL = "test"
_BROKER = "broker.json"
_BROKER_SECONDS = 180.0
_IDLE_SECONDS = 600.0
# The second compiler would take most of the CPU of the first ten runs. Few short collections: plans are short-lived.
_JAVA = ("-XX:TieredStopAtLevel=1", "-Xms512m", "-Xmn256m", "-XX:ReservedCodeCacheSize=160m")


class CaseBroker:
    """A broker for cases in real-time mode, that starts in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ready: Future[KafkaSettings] = Future()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start it, unless it was."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
            self._thread.start()

    def settings(self) -> KafkaSettings:
        """Wait for it; returns its address. ConfigError if it cannot start here, TransientError if it does not."""
        self.begin()
        return self.ready.result(_BROKER_SECONDS)

    def close(self) -> None:
        """End it."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # The broker ends with the thread that has started it, so this one stays.
        try:
            with temporary_broker(self._folder, JOB) as kafka:
                self.ready.set_result(kafka)
                self._ends.wait()
        except Exception as error:
            if not self.ready.done():
                self.ready.set_exception(error)


class CaseEngine:
    """The engine of the cases of a project, as one of its users sees it; raises as `attach_or_start`."""

    def __init__(self, settings: Settings) -> None:
        """Attach to it, or start it."""
        project = hashlib.sha256(str(settings.project).encode()).hexdigest()[:8]
        users = Path(tempfile.gettempdir(), f"tocsin-{os.getuid()}")
        self._folder = users / f"{project}-{engine_code(_apart(settings, users))}"
        command = [sys.executable, "-m", __name__, str(settings.project), str(self._folder)]
        self.attachment: Attachment = attach_or_start(_apart(settings, self._folder), _POOL, JOB, command)

    def broker(self) -> KafkaSettings | None:
        """Wait for its broker; None if there is none."""
        deadline = time.monotonic() + _BROKER_SECONDS / 6
        while (kafka := state_file.read(self._folder / _BROKER, KafkaSettings, None)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return kafka if accepts(int(kafka.bootstrap_servers.rpartition(":")[2])) else None

    def has_ended(self) -> bool:
        """Return whether its JVM does not answer any more."""
        try:
            self.attachment.session.conf.get("spark.sql.session.timeZone")
        except Exception:  # py4j raises many kinds
            return True
        return False


def _apart(settings: Settings, folder: Path) -> Settings:
    """Give settings with nothing of the installation but what an engine has in common with its jobs."""
    return settings.apart(folder).model_copy(update={"kafka": KafkaSettings.model_construct()})


def _run(project: Path, folder: Path) -> int:
    logs.keep_bounded()
    own, broker = _apart(load_settings(project), folder), CaseBroker(folder / "kafka")
    broker.ready.add_done_callback(lambda ready: state_file.write(folder / _BROKER, KafkaSettings, ready.result()))
    broker.begin()
    try:
        latency = own.latency_of(_POOL)
        run_until_idle(own, _POOL, lambda job: engine_session(own, job, latency, _JAVA), _IDLE_SECONDS)
    finally:
        broker.close()
    return ExitCode.OK


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    logs.configure(JOB)
    sys.exit(exit_code_of(lambda: _run(Path(sys.argv[1]), Path(sys.argv[2]))))
