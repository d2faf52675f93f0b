"""Airflow as four servers of the stack: API server, scheduler, DAG processor, triggerer.

Never `airflow standalone`: it restarts nothing, and its parts outlive it. One component prepares the metadata DB while
the others wait for it (`tocsin.airflow.component`).
"""

from __future__ import annotations

import hashlib
import json
import secrets
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import AirflowSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.platform.state_file import write_whole
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment
from tocsin.supervise.runners.runner import Labels, Launch, leading

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
PREFIX = "airflow-"
_HEALTH = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
_SECRETS = ("jwt", "fernet", "session")
_PRIVATE = 0o600
_ANSWER_SECONDS = 5.0
# Patterns of what tasks send. Each task is a process, and so another instance: its figures would be new series in the
# receiver, a dozen for each look of the supervisor, and none of them would ever count beyond one. Of those that last
# longer than the interval each also sends the start of its scheduler, which it has inherited.
_BY_TASKS = r"^ti[._],^task\.,^dag\.,^operator_,^serde\.,^job_(start|end)$"


@dataclass(frozen=True)
class Airflow:
    """The Airflow of one state folder; what runs in it has exactly its `settings`.

    `port` is that of its page and API. Heartbeats from before `since` are those of an earlier run.
    """

    settings: Settings
    port: int
    java_home: Path
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def url(self) -> str:
        """Address of its page, and of its API."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def folder(self) -> Path:
        """Airflow's home: its DB unless that is elsewhere, logs, passwords and secrets."""
        return (self.settings.state / "airflow").resolve()

    @property
    def passwords(self) -> Path:
        """File with the password of each user, as JSON."""
        return self.folder / "passwords.json"

    def components(self) -> list[Component]:
        """Its servers, in the order of their start."""
        return [Component(self, name) for name in COMPONENTS]

    def prepare(self) -> None:
        """Make the folder, the secrets and the passwords that are not there yet, readable for this user alone.

        Raises ConfigError if Airflow is not installed, OSError if the folder cannot be written.
        """
        if not (here().airflow_venv / "bin" / "airflow").exists():
            raise ConfigError.one(here().airflow_venv, "does not hold Airflow; run: make setup")
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in _SECRETS:
            if not (path := self.folder / f"{name}.secret").exists():
                write_whole(path, _secret(name), mode=_PRIVATE)
        passwords = json.loads(self.passwords.read_text()) if self.passwords.exists() else {}
        new = {name: secrets.token_urlsafe(12) for name in self.settings.airflow.users if name not in passwords}
        if new:
            write_whole(self.passwords, json.dumps(passwords | new), mode=_PRIVATE)

    def environment(self) -> dict[str, str]:
        """Build that of each component; call `prepare` first. Raises ConfigError if the DB's address cannot be read."""
        own = {f"AIRFLOW__{name}": value for name, value in self._options().items()}
        connections = {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        # Its processes rename themselves; without this they would overwrite their environment, and with it the labels.
        others = {"AIRFLOW_HOME": str(self.folder), "SPT_NOENV": "1", "MALLOC_ARENA_MAX": "2"}
        return job_environment(self.settings, self.java_home) | own | connections | others | self._metrics()

    def _metrics(self) -> dict[str, str]:
        """Give the variables of OpenTelemetry that Airflow reads; it has deprecated options of its own for them."""
        url = self.settings.airflow.metrics_url
        if url is None:
            return {}
        return {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "AIRFLOW__METRICS__METRICS_BLOCK_LIST": _BY_TASKS,
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            # Seconds, tries included. Each task sends at its end: with the default of 10 a receiver that is away would
            # hold it up for twenty seconds (seen in 3.3.2).
            "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "1",
            "OTEL_METRIC_EXPORT_INTERVAL": "15000",  # milliseconds; as often as Prometheus reads the exporter
        }

    def _options(self) -> dict[str, str]:
        settings: AirflowSettings = self.settings.airflow
        users = ",".join(f"{name}:{role}" for name, role in settings.users.items())
        jwt, fernet, session = ((self.folder / f"{name}.secret").read_text() for name in _SECRETS)
        return {
            "CORE__DAGS_FOLDER": str(here().root / "dags"),
            "CORE__PLUGINS_FOLDER": str(here().root / "src" / "tocsin" / "airflow" / "plugins"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": "4",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__FERNET_KEY": fernet,
            "CORE__SIMPLE_AUTH_MANAGER_USERS": users,
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.passwords),
            "DATABASE__SQL_ALCHEMY_CONN": settings.database(self.folder),
            "API__HOST": LOOPBACK,
            "API__PORT": str(self.port),
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": session,
            "API_AUTH__JWT_SECRET": jwt,
            "LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            # A batch outlives an API server that is away for four minutes: by default its third heartbeat in vain ends
            # it, after some 55 seconds (seen in 3.3.2). A run of the supervisor whose worker has died ends after two.
            "WORKERS__EXECUTION_API_RETRIES": "12",
            "WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "10",
            "WORKERS__MAX_FAILED_HEARTBEATS": "20",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
            # With the default of 20, as many running runs keep every backfill from starting (seen in 3.3.2).
            "SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "500",
            "TRIGGERER__CAPACITY": "200",
        }


@dataclass(frozen=True)
class Component:
    """One server of Airflow; `component` is its name in Airflow's command line."""

    airflow: Airflow
    component: str

    @property
    def name(self) -> str:
        """Its name in the stack."""
        return f"{PREFIX}{self.component}"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; errors as of `Server.launch`."""
        self.airflow.prepare()
        environment = self.airflow.environment()
        python = here().airflow_venv / "bin" / "python"
        spec = hashlib.sha256(json.dumps([str(python), environment], sort_keys=True).encode()).hexdigest()[:12]
        labels = Labels(instance, self.name, spec)
        # It renames itself, so its command line cannot say who leads; its environment does, with the leader's number.
        return Launch(
            labels=labels,
            command=leading([str(python), "-m", "tocsin.airflow.component", self.component]),
            environment=environment,
            directory=self.airflow.folder,
            log=self.airflow.settings.log(self.name),
        )

    def waiting_for(self) -> str | None:
        """Name what it still lacks to work; None when nothing."""
        return missing(self.airflow.url, self.component, self.airflow.since)


def missing(url: str, component: str, since: datetime) -> str | None:
    """Ask the API at `url` what `component` still lacks; None when nothing. Heartbeats before `since` do not count."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=_ANSWER_SECONDS) as answer:
            answered = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return "its API" if component == "api-server" else "the API server"
    part = _HEALTH.get(component)
    if part is None:
        return None
    beat = answered.get(part, {}).get(f"latest_{part}_heartbeat")
    # Airflow calls a component healthy also by the heartbeat of the one before.
    alive = bool(beat) and datetime.fromisoformat(beat) >= since
    return None if alive else "its first heartbeat"


def _secret(name: str) -> str:
    """A Fernet key is 32 bytes in URL-safe base64, with its padding; the others are longer."""
    return secrets.token_urlsafe(32) + "=" if name == "fernet" else secrets.token_urlsafe(64)
