"""The one place that reads settings, from the environment and from files.

Later wins: defaults, `tocsin.toml` in the project folder, what a running `tocsin dev` wrote into its state folder,
environment variables (`TOCSIN_KAFKA__BOOTSTRAP_SERVERS=...`). Secrets are given as paths of files, never as values.
`DEFAULT_TOCSIN_...` variables replace defaults: tests keep away from the ports of a running stack that way.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tocsin.declare.blocks.spark_settings import LATENCIES, LOCAL, EngineSettings, SparkSettings
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.names import Names, file_name
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.receivers import read_blocks
from tocsin.declare.setting_blocks import (
    FILE,
    LOOPBACK,
    S3,
    AirflowSettings,
    AlertSettings,
    ConditionSettings,
    DrainSettings,
    HistorySettings,
    KafkaSettings,
    ListenSettings,
    LogSettings,
    MetricsSettings,
    RunnerSettings,
    SmtpSettings,
    StorageSettings,
    TlsSettings,
    ViewSettings,
)
from tocsin.declare.validation import faults_of

PROJECT_FILE = "tocsin.toml"
RUNNING_FILE = "running.toml"
_UNNAMED = "local"


class Settings(BaseSettings):
    """All settings of one installation.

    Attributes:
        project: folder that holds sources/ and detectors/, and `tocsin.toml`; set by TOCSIN_PROJECT alone.
        state: folder of everything that runs: Kafka's data, checkpoints, logs, the alerts DB.
        instance: names this installation, wherever its jobs run. One called `local` has no name: it is known by its
            state folder.
        receivers: by kind of receiver, its settings.
    """

    model_config = SettingsConfigDict(env_prefix="TOCSIN_", env_nested_delimiter="__", extra="forbid", frozen=True)

    project: Path = Path()
    state: Path = Path(".tocsin/state")
    instance: str = Field(default=_UNNAMED, pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    kafka: KafkaSettings = KafkaSettings()
    smtp: SmtpSettings = SmtpSettings()
    alerts: AlertSettings = AlertSettings()
    conditions: ConditionSettings = ConditionSettings()
    spark: SparkSettings = SparkSettings()
    engine: EngineSettings = EngineSettings()
    storage: StorageSettings = StorageSettings()
    history: HistorySettings = HistorySettings()
    airflow: AirflowSettings = AirflowSettings()
    tls: TlsSettings = TlsSettings()
    drain: DrainSettings = DrainSettings()
    views: ViewSettings = ViewSettings()
    web: WebSettings = WebSettings()
    metrics: MetricsSettings = MetricsSettings()
    logs: LogSettings = LogSettings()
    runner: RunnerSettings = RunnerSettings()
    receivers: Annotated[dict[str, Any], AfterValidator(read_blocks)] = {}

    @model_validator(mode="after")
    def _place_files(self) -> Settings:
        """Let each path begin in the project, since jobs run in another folder than commands."""
        for name in type(self).model_fields.keys() - {"project", "state"}:
            self.__dict__[name] = _within(self.project, getattr(self, name))
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        for name, uri in (("checkpoints", self.storage.checkpoints), ("history", self.storage.history)):
            if uri is not None and self.instance == _UNNAMED:
                what = f"storage.{name} needs `instance`, a name for this installation: it marks the folder as its own"
                raise ValueError(what)
        if self.storage.has_remote_history and self.history.catalog_file is None:
            what = f"storage.history on {S3} needs a catalogue that all machines share, in PostgreSQL: set "
            what += "history.catalog_file to a file that holds its address, such as postgresql+psycopg://db/tocsin"
            raise ValueError(what)
        for name, server in (("drain", self.drain), ("web", self.web), ("metrics", self.metrics)):
            if server.host != LOOPBACK and not server.plain_http and not self.has_tls(server):
                what = (
                    f"{name}.host: one other than {LOOPBACK} needs a certificate in [tls], since passwords come in; or "
                )
                raise ValueError(f"{what}{name}.plain_http = true, if a proxy in front of it adds TLS")
        if lack := self.spark.lack(is_in_pods=self.runner.kind == "kubernetes"):
            raise ValueError(f"spark.master = '{self.spark.master}' {lack}")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before files (which come in as init arguments)."""
        return (env_settings, init_settings, EnvSettingsSource(settings_cls, env_prefix="DEFAULT_TOCSIN_"))

    @property
    def has_engines(self) -> bool:
        """Return whether jobs share JVMs: processes of one machine, whose tasks run there too."""
        return self.engine.enabled and self.spark.master == LOCAL and self.runner.kind == "local"

    def pool(self, declared: DetectorSpec | FlowSpec | ViewSpec) -> str:
        """Name the engines that the job of a `declared` file attaches to; empty for a JVM of its own.

        They are "live" or "shadow", or "live_10ms" and so on for another latency than that of the settings.
        """
        if declared.isolation or not self.has_engines:
            return ""
        latency = declared.latency.replace(" ", "") if declared.latency not in ("", self.spark.latency) else ""
        return f"{declared.stage}_{latency}" if latency else str(declared.stage)

    def latency_of(self, pool: str) -> str:
        """Return the latency, of `LATENCIES`, of the engines of `pool`."""
        own = pool.partition("_")[2]
        return next((latency for latency in LATENCIES if latency.replace(" ", "") == own), self.spark.latency)

    @property
    def local_id(self) -> str:
        """Identifies this installation on this machine by name and state folder; others may have the same name."""
        return f"{self.instance}-{hashlib.sha256(str(self.state.resolve()).encode()).hexdigest()[:8]}"

    @property
    def installation_id(self) -> str:
        """Marks the reports of this installation, on all its machines; others may share its broker."""
        return self.local_id if self.instance == _UNNAMED else self.instance

    @property
    def names(self) -> Names:
        """Names of topics and groups, with the prefix of this installation."""
        return Names(self.kafka.topic_prefix)

    @property
    def alerts_database(self) -> str:
        """SQLAlchemy address of the alerts DB; ConfigError if the file that holds it cannot be read."""
        return self.alerts.address(self.state)

    @property
    def history_folder(self) -> Path:
        """Folder of landed files, sealed days and their tables; with an object store, of what stays on this machine."""
        if self.storage.history is not None and not self.storage.has_remote_history:
            return Path(self.storage.history.removeprefix(FILE))
        return self.state / "history"

    @property
    def history_catalog(self) -> str:
        """SQLAlchemy address of the Iceberg catalogue of history.

        ConfigError if its file cannot be read, or it is a file's, while history is in an object store.
        """
        address = self.history.address(self.history_folder)
        if self.storage.has_remote_history and not address.startswith("postgresql"):
            what = f"must hold an address in PostgreSQL, since storage.history is on {S3}"
            raise ConfigError.one(str(self.history.catalog_file), what, key="history.catalog_file")
        return address

    def has_tls(self, server: ListenSettings) -> bool:
        """Return whether `server` speaks TLS."""
        return self.tls.certificate_file is not None and not server.plain_http

    @property
    def web_address(self) -> str:
        """The address of the pages without a final slash; empty if not set and `host` stands for all of a machine."""
        is_known = self.web.address is not None or self.web.local_host == self.web.host
        return self.local_web_address if is_known else ""

    @property
    def local_web_address(self) -> str:
        """The same for people on this machine, who reach it by loopback if `host` stands for all of a machine."""
        host = f"[{self.web.local_host}]" if ":" in self.web.local_host else self.web.local_host
        own = f"{'https' if self.has_tls(self.web) else 'http'}://{host}:{self.web.port}"
        return (self.web.address or own).rstrip("/")

    def apart(self, state: Path) -> Settings:
        """Return a copy for a trial in the folder `state`, which shares no checkpoints with any job."""
        return self.model_copy(update={"state": state, "storage": StorageSettings()})

    def checkpoint(self, job: str) -> Path:
        """Folder of `job`: its locks, and what it must find again unless `storage.checkpoints` puts that elsewhere."""
        return self.state / "checkpoints" / file_name(job)

    def log(self, job: str) -> Path:
        """Log file of `job` or of a component of the stack."""
        return self.state / "logs" / f"{file_name(job)}.log"


def load_settings(project: Path | None = None) -> Settings:
    """The settings of the installation in `project` (TOCSIN_PROJECT, else the current folder).

    ConfigError with every fault, and the file or variable that holds it.
    """
    if faults := [*_miswritten()]:
        raise ConfigError(faults)
    folder = (project or Path(os.environ.get("TOCSIN_PROJECT", "."))).resolve()
    values = _table(folder / PROJECT_FILE)
    if "project" in values:
        what = "is the folder of this file; TOCSIN_PROJECT names another"
        raise ConfigError.one(folder / PROJECT_FILE, what, key="project")
    state = Path(str(os.environ.get("TOCSIN_STATE") or values.get("state") or ".tocsin/state"))
    state = state if state.is_absolute() else folder / state
    values = _merged(values, _table(state / RUNNING_FILE)) | {"project": folder, "state": state} | _unknown_blocks()
    overridden = {k: os.environ.pop(k) for k in ("TOCSIN_PROJECT", "TOCSIN_STATE") if k in os.environ}
    try:
        return Settings(**values)
    except ValidationError as error:
        where = f"{folder / PROJECT_FILE} or TOCSIN_* variables"
        raise ConfigError(faults_of(error, where, Settings, "a setting")) from error
    except SettingsError as error:
        text = getattr(error.__cause__, "doc", None)
        names = [name for name, value in os.environ.items() if name[:7].upper() == "TOCSIN_" and value == text]
        what = 'must be JSON, since it holds a list or a table, such as ["a@example.com"] or {"port": 25}'
        raise ConfigError.one(" or ".join(names), what) from error
    finally:
        os.environ.update(overridden)


def _within(folder: Path, value: Any) -> Any:
    """Give `value`, and what it holds, with each path that is not absolute in `folder`."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _within(folder, own) for name, own in value})
    return {name: _within(folder, own) for name, own in value.items()} if isinstance(value, dict) else value


def _miswritten() -> Iterator[Fault]:
    """Find variables with one underscore behind the block, where two are needed: pydantic passes over them, too."""
    for block, field in Settings.model_fields.items():
        for key in getattr(field.annotation, "model_fields", ()):
            name = f"TOCSIN_{block}_{key}".upper()
            # Kubernetes calls the address of a service `tocsin-web` TOCSIN_WEB_PORT.
            if not os.environ.get(name, "tcp://").startswith("tcp://"):
                yield Fault(name, "is not a setting", nearest=f"TOCSIN_{block}__{key}".upper())


def _unknown_blocks() -> dict[str, Any]:
    """The blocks that variables name and that do not exist, to be refused: pydantic passes over them."""
    named = (
        name.lower().removeprefix("tocsin_").partition("__") for name in os.environ if name[:7].upper() == "TOCSIN_"
    )
    return {block: {} for block, mark, _ in named if block and mark and block not in Settings.model_fields}


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors of Windows begin with a mark
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError.one(path, f"is not TOML: {error}") from error


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {k: _merged(base[k], v) for k, v in over.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return base | over | both
