"""The blocks of the settings: one model for each table of `tocsin.toml`. `tocsin.declare.settings` reads them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.receivers import check_mail, check_recipient
from tocsin.declare.sinks import SINKS
from tocsin.declare.validation import Address, Duration

LOOPBACK = "127.0.0.1"
OPERATOR = "operator"
"""The role of who operates the jobs. The others are the kinds of jobs."""
_DATABASE = re.compile(
    r"(sqlite|postgresql)(\+\w+)?://([^:/]*(:[^@]*)?@)?(\[[^/?]+\]|[^/:?]+)?(:\d+)?([/?].*)?"  # as SQLAlchemy reads it
)
AirflowRole = Literal["viewer", "user", "op", "admin"]


class SettingBlock(BaseModel):
    """Base of every block: a key that it does not know is an error, and no value changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaLogin(SettingBlock):
    """The login of one role.

    Attributes:
        username: its principal.
        password_file: file that holds the password.
    """

    username: str
    password_file: Path


class KafkaSettings(SettingBlock):
    """The address of Kafka and the login. One block, translated for every client.

    Attributes:
        bootstrap_servers: comma-separated host:port.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        sasl_mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        sasl_username: principal.
        sasl_password_file: file that holds the password.
        ssl_ca_file: PEM file of the authorities to trust; the system's when None.
        ssl_certificate_file, ssl_key_file: PEM files of a client certificate.
        topic_prefix: before every topic and consumer group.
        logins: by role (a kind of job), the login of its jobs; without one they use the one above.
    """

    bootstrap_servers: str = "127.0.0.1:9092"
    security_protocol: str = Field(default="PLAINTEXT", pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$")
    sasl_mechanism: str | None = Field(default=None, pattern="^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512)$")
    sasl_username: str | None = None
    sasl_password_file: Path | None = None
    ssl_ca_file: Path | None = None
    ssl_certificate_file: Path | None = None
    ssl_key_file: Path | None = None
    topic_prefix: str = ""
    logins: dict[str, KafkaLogin] = {}

    def for_role(self, role: str) -> KafkaSettings:
        """Return these settings with the login of `role`, and without those of others."""
        login = self.logins.get(role)
        own = {} if login is None else {"sasl_username": login.username, "sasl_password_file": login.password_file}
        return self.model_copy(update={"logins": {}, **own})

    @model_validator(mode="after")
    def _complete(self) -> KafkaSettings:
        if OPERATOR in self.logins:
            raise ValueError("logins.operator: the operator logs in by sasl_username; write its login there")
        if strange := self.logins.keys() - KINDS.keys():
            raise ValueError(f"logins.{min(strange)}: no kind of job; the kinds are {', '.join(sorted(KINDS))}")
        if self.logins and not self.security_protocol.startswith("SASL"):
            raise ValueError(f"logins need security_protocol SASL_SSL or SASL_PLAINTEXT, not {self.security_protocol}")
        if self.security_protocol.startswith("SASL"):
            missing = [k for k in ("sasl_mechanism", "sasl_username", "sasl_password_file") if getattr(self, k) is None]
            if missing:
                raise ValueError(f"{self.security_protocol} also needs {', '.join(missing)}")
        if (self.ssl_certificate_file is None) != (self.ssl_key_file is None):
            raise ValueError("ssl_certificate_file and ssl_key_file go together")
        return self

    def for_librdkafka(self) -> dict[str, Any]:
        """Configuration of a confluent-kafka producer, consumer or admin client."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "log_level": 0,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 2_000,
        }
        if self.sasl_mechanism:
            config |= {"sasl.mechanism": self.sasl_mechanism, "sasl.username": self.sasl_username}
            config["sasl.password"] = self._password()
        files = {"ssl.ca.location": self.ssl_ca_file, "ssl.certificate.location": self.ssl_certificate_file}
        files["ssl.key.location"] = self.ssl_key_file
        return config | {key: str(path) for key, path in files.items() if path is not None}

    def for_java(self) -> dict[str, str]:
        """Configuration of Kafka's Java clients (Spark prefixes each key with `kafka.`)."""
        config = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.security_protocol}
        if self.sasl_mechanism:
            module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            user, password = _quoted(self.sasl_username or ""), _quoted(self._password())
            login = f"org.apache.kafka.common.security.{module} required username={user} password={password};"
            config |= {"sasl.mechanism": self.sasl_mechanism, "sasl.jaas.config": login}
        if self.ssl_ca_file is not None:
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ssl_ca_file)}
        if self.ssl_certificate_file is not None and self.ssl_key_file is not None:
            chain, key = self.ssl_certificate_file.read_text(), self.ssl_key_file.read_text()
            config |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": chain,
                "ssl.keystore.key": key,
            }
        return config

    def _password(self) -> str:
        return secret_in(self.sasl_password_file, "kafka.sasl_password_file")


def _mail_address(value: str) -> str:
    check_mail(value)
    return value


class SmtpSettings(SettingBlock):
    """The SMTP server that sends the mail.

    Attributes:
        host, port: of the SMTP server.
        tls: "none", "starttls" or "implicit".
        username, password_file: for servers that ask for a login.
        sender: From address; its domain is that of Message-ID and List-Id.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=1025, ge=1, le=65535)
    tls: str = Field(default="none", pattern="^(none|starttls|implicit)$")
    username: str | None = None
    password_file: Path | None = None
    sender: Annotated[str, AfterValidator(_mail_address)] = "tocsin@localhost.localdomain"

    @property
    def domain(self) -> str:
        """Domain of the ids of messages."""
        return self.sender.rpartition("@")[2]

    def password(self) -> str | None:
        """The password, or None when no login is configured."""
        return None if self.password_file is None else secret_in(self.password_file, "smtp.password_file")


def _check_heartbeat(target: str) -> str:
    return target if re.fullmatch(r"https?://[^\s/]+\S*", target) else check_recipient(target)


class AlertSettings(SettingBlock):
    """The alerts that are made of findings.

    Attributes:
        database_file: holds the SQLAlchemy address of the alerts DB; None is SQLite in the state folder.
        urgent_recipients: who is paged besides the detector's owner.
        group_interval: how long e-mail alerts to one person gather after the last such message; urgent ones do not.
        repeat_interval: after which an e-mail alert that continues is listed in a summary.
        history_days: for how many days the alerts DB keeps findings, alerts, notifications and usage.
        heartbeat: an http(s) URL to ask, or a recipient to send to, while supervisor and notifier work: for a service
            outside that alarms people when it misses that; asked or sent to every five minutes.
    """

    database_file: Path | None = None
    urgent_recipients: tuple[Address, ...] = ()
    group_interval: Duration = Field(default=timedelta(minutes=30), ge=timedelta(seconds=1), le=timedelta(days=1))
    repeat_interval: Duration = Field(default=timedelta(days=1), ge=timedelta(minutes=1))
    history_days: int = Field(default=400, ge=1, le=3650)
    heartbeat: Annotated[str, AfterValidator(_check_heartbeat)] | None = None

    def address(self, state: Path) -> str:
        """SQLAlchemy address of the alerts DB, in `state` unless a file holds another.

        Raises:
            ConfigError: that file cannot be read.
        """
        if self.database_file is None:
            return f"sqlite:///{state / 'alerts.db'}"
        return _database_in(self.database_file, "alerts.database_file")


class ConditionSettings(SettingBlock):
    """Thresholds for mails about running jobs: `tocsin.supervise.incidents.conditions`.

    Attributes:
        lag: how far behind a job may be for two minutes on end.
        silent_after: how long a source that had input may have none; `silent_after` in its file comes first.
    """

    lag: Duration = timedelta(minutes=5)
    silent_after: Duration = timedelta(hours=6)


class TlsSettings(SettingBlock):
    """The certificate of our servers: the log drain, the pages and the exporter.

    Attributes:
        certificate_file, key_file: PEM files.
    """

    certificate_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        return self


class ListenSettings(SettingBlock):
    """Where a server of ours listens.

    Attributes:
        host, port: with an address that is not loopback it needs a certificate in `[tls]`.
        plain_http: no TLS, on any host and in spite of `[tls]`: only where a proxy in front of it adds TLS, or where
            the port is reached by loopback alone.
    """

    host: str = LOOPBACK
    port: int = Field(ge=1, le=65535)
    plain_http: bool = False

    @property
    def local_host(self) -> str:
        """The host by which this machine reaches it."""
        return LOOPBACK if self.host in ("", "0.0.0.0", "::") else self.host


class DrainSettings(ListenSettings):
    """The log drain, which runs when it is told who may send.

    Attributes:
        credentials_file: `source:password` in each line, readable by its owner alone; without it there is no drain.
        only: by source, a pattern of the `app/process` of the syslog lines that it takes, such as `heroku/router`.
    """

    credentials_file: Path | None = None
    port: int = Field(default=8430, ge=1, le=65535)
    only: dict[str, str] = {}


class MetricsSettings(ListenSettings):
    """The exporter, which answers Prometheus.

    Attributes:
        enabled: whether it runs.
        token_file: holds the token that Prometheus must send; an address that is not loopback needs one.
    """

    enabled: bool = False
    port: int = Field(default=8435, ge=1, le=65535)
    token_file: Path | None = None

    @model_validator(mode="after")
    def _closed(self) -> Self:
        if self.host != LOOPBACK and self.token_file is None:
            raise ValueError(f"a host other than {LOOPBACK} needs token_file: figures name jobs and detectors")
        return self


class LogSettings(SettingBlock):
    """The form of log lines.

    Attributes:
        format: `logfmt` for people, `json` for programs: one object in each line, with the `run` of the process.
    """

    format: Literal["logfmt", "json"] = "logfmt"


class AirflowSettings(SettingBlock):
    """The options of Airflow as part of the stack.

    Attributes:
        port: of its page and its REST API.
        users: name to role. Their passwords are made once, in `<state>/airflow/passwords.json`.
        database_file: holds the SQLAlchemy address of the metadata DB; None is SQLite in the state folder, good for one
            person. Anything that is kept wants PostgreSQL.
        metrics_url: where its processes send their metrics, as OTLP over HTTP; nowhere if None. Of a Prometheus that
            takes them it ends with /api/v1/otlp/v1/metrics.
    """

    port: int = Field(default=8080, ge=1, le=65535)
    users: dict[str, AirflowRole] = {"admin": "admin", "operator": "op", "viewer": "viewer"}
    database_file: Path | None = None
    metrics_url: str | None = Field(default=None, pattern=r"^https?://[^\s/]+/\S*$")

    def database(self, folder: Path) -> str:
        """SQLAlchemy address of the metadata DB; `folder` is Airflow's own."""
        if self.database_file is None:
            return f"sqlite:///{folder / 'airflow.db'}"
        return _database_in(self.database_file, "airflow.database_file")


def secret_in(path: Path | None, key: str) -> str:
    """Read what the file that `key` names holds; ConfigError if it cannot be read, or is empty as one being written."""
    try:
        text = Path(path or "").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError.one(str(path), f"cannot be read: {error.strerror}", key=key) from error
    if not text:
        raise ConfigError.one(str(path), "is empty", key=key)
    return text


def _database_in(path: Path, key: str) -> str:
    address = secret_in(path, key)
    if not _DATABASE.fullmatch(address):  # which may hold a password
        what = "must hold an address such as postgresql://user:password@host:5432/database, and nothing else"
        raise ConfigError.one(str(path), what, key=key)
    return address


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class HistorySettings(SettingBlock):
    """The history of events beyond Kafka.

    Attributes:
        catalog_file: holds the SQLAlchemy address of the Iceberg catalogue; None is SQLite in the folder of history.
        grace: how long after its end a day is waited for before it is sealed.
    """

    catalog_file: Path | None = None
    grace: Duration = timedelta(hours=1)

    def address(self, folder: Path) -> str:
        """SQLAlchemy address of the catalogue, in `folder` unless a file holds another.

        Raises:
            ConfigError: that file cannot be read.
        """
        if self.catalog_file is None:
            return f"sqlite:///{folder / 'catalog.db'}"
        return _database_in(self.catalog_file, "history.catalog_file")


class ViewSettings(SettingBlock, extra="allow"):
    """The addresses of sinks: each as the key of its name, or, with a password, in a file that the key NAME_file names.

    `postgres = "postgresql://user@host/database"`, `redis = "redis://host:6379/0"` (`rediss://` for TLS),
    `influx = "http://host:8086/write?db=name"`, of version 2 `"http://:token@host:8086/api/v2/write?org=a&bucket=b"`.
    """

    __pydantic_extra__: dict[str, str | Path | None]

    @model_validator(mode="after")
    def _names_sinks(self) -> Self:
        for key in self.__pydantic_extra__:
            if key.removesuffix("_file") not in SINKS:
                raise ValueError(f"has no sink '{key}'; there are {', '.join(SINKS)}, each also with '_file'")
            if key.endswith("_file") and self.__pydantic_extra__[key]:
                self.__pydantic_extra__[key] = Path(str(self.__pydantic_extra__[key]))
        return self

    def has_address(self, kind: str) -> bool:
        """Return whether the address of the sink `kind` is set."""
        return any(self.__pydantic_extra__.get(key) is not None for key in (kind, f"{kind}_file"))

    def address(self, kind: str) -> str | None:
        """Return the address of the sink `kind`; None if it is not set.

        Raises:
            ConfigError: its file cannot be read.
        """
        path, address = (self.__pydantic_extra__.get(key) for key in (f"{kind}_file", kind))
        if path is not None:
            return secret_in(Path(path), f"views.{kind}_file")
        return None if address is None else str(address)


JOB_ACCOUNT, STATE_CLAIM, SECRET_FOLDER = "tocsin-job", "tocsin-state", "/etc/tocsin/secrets"
"""The service account of the pods of jobs, the claim of the state folder, and where the Secret appears."""
# The group may read the mounted secrets and write the state folder; 10001 is the user of our image.
POD_SECURITY = {"runAsNonRoot": True, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class PodSettings(SettingBlock):
    """What pods of one kind request; see docs/run/kubernetes.md for what they do without.

    Attributes:
        cpu: as Kubernetes writes it, such as "500m" or "2".
        memory_mb: what a job of this kind usually holds; the most that it may hold follows from that.
    """

    cpu: str | None = Field(default=None, pattern=r"^[0-9]+(\.[0-9]+)?m?$")
    memory_mb: int | None = Field(default=None, ge=32)


class RunnerSettings(SettingBlock):
    """Where the jobs run, and how a cluster is asked to run them.

    Attributes:
        kind: "local", processes of this machine; or "kubernetes", each job a StatefulSet of one replica.
        namespace: of the StatefulSets.
        image: of the jobs, with Tocsin and the project in the same folders as where the supervisor runs.
        secret: Secret whose entries are mounted as files into /etc/tocsin/secrets, where settings such as
            `kafka.sasl_password_file` can name them; None for none.
        pods: by kind of job, what their pods request.
    """

    kind: Literal["local", "kubernetes"] = "local"
    namespace: str = Field(default="tocsin", pattern=_LABEL)
    image: str | None = None
    secret: str | None = Field(default=None, pattern=_LABEL)
    pods: dict[str, PodSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if strange := self.pods.keys() - KINDS.keys():
            raise ValueError(f"pods.{min(strange)}: no kind of job; the kinds are {', '.join(sorted(KINDS))}")
        if self.kind == "kubernetes" and not self.image:
            raise ValueError("kind kubernetes also needs image, the image that the jobs run")
        return self

    def volumes(self, state: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Write the volumes that every pod of ours has, and where they are mounted; `state` is the state folder."""
        volumes: list[dict[str, Any]] = [{"name": "state", "persistentVolumeClaim": {"claimName": STATE_CLAIM}}]
        mounts: list[dict[str, Any]] = [{"name": "state", "mountPath": state}]
        if self.secret is not None:
            volumes.append({"name": "secrets", "secret": {"secretName": self.secret, "defaultMode": 0o440}})
            mounts.append({"name": "secrets", "mountPath": SECRET_FOLDER, "readOnly": True})
        return volumes, mounts


FILE, S3 = "file:", "s3a://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class StorageSettings(SettingBlock):
    """The places of checkpoints and of history, and the object store that they may lie in.

    Attributes:
        checkpoints: URI of the folder of all checkpoints, `s3a://bucket/prefix` or `file:/folder`; None is
            `checkpoints` in the state folder.
        history: URI of the folder of landed files, sealed days and their tables, likewise; `history` in the state
            folder when None.
        s3_endpoint: URL of an object store that is not Amazon's, such as `https://minio.example.com:9000`.
        s3_region: of the bucket.
        s3_credentials_file: who may read and write it, in the form of `~/.aws/credentials`; None takes what the
            machine offers: that file, or the role of the machine or container.
    """

    checkpoints: str | None = None
    history: str | None = None
    s3_endpoint: str | None = Field(default=None, pattern=r"^https?://[^/@\s]+$")
    s3_region: str = Field(default="us-east-1", pattern="^[a-z0-9-]+$")
    s3_credentials_file: Path | None = None

    @field_validator("checkpoints", "history")
    @classmethod
    def _usable(cls, uri: str | None) -> str | None:
        if uri is None:
            return None
        if uri.startswith(f"{FILE}/"):
            return f"{FILE}/{uri.removeprefix(FILE).strip('/')}"  # file:///folder as well
        bucket, _, prefix = uri.removeprefix(S3).rstrip("/").partition("/")
        if not uri.startswith(S3):
            raise ValueError(f"must begin with {S3} or {FILE}/, not {uri.partition(':')[0]!r}")
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"names no bucket: 3 to 63 small letters, digits, dots and hyphens, not {bucket!r}")
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", prefix, re.ASCII) or {".", ".."} & {*prefix.split("/")}:
            raise ValueError(f"needs a prefix behind the bucket, of letters, digits, '.', '_', '-' and '/': {uri!r}")
        return uri.rstrip("/")

    @property
    def is_remote(self) -> bool:
        """Return whether checkpoints lie in an object store."""
        return self.checkpoints is not None and self.checkpoints.startswith(S3)

    @property
    def has_remote_history(self) -> bool:
        """Return whether history lies in an object store."""
        return self.history is not None and self.history.startswith(S3)

    @property
    def remote_uri(self) -> str | None:
        """Return a URI in the object store, that of history first; None if neither is."""
        return self.history if self.has_remote_history else self.checkpoints if self.is_remote else None

    def setting_of(self, uri: str) -> str:
        """Name the setting that has put `uri` where it is."""
        is_history = self.history is not None and f"{uri}/".startswith(f"{self.history}/")
        return "storage.history" if is_history else "storage.checkpoints"
