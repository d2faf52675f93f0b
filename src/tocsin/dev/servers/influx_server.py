"""An InfluxDB on loopback, of version 1, with one database."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request

from tocsin.dev.servers.guarded_server import GuardedServer
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.supervise.runners.runner import Launch

_USER, _DATABASE = "tocsin", "views"
_ANSWER_SECONDS = 2.0
_CONFIGURATION = """reporting-disabled = true
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
        return f"http://{_USER}:{self._password()}@{LOOPBACK}:{self.port}/write?db={_DATABASE}"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; errors as of `Server.launch`."""
        folders = {name: json.dumps(str((self.folder / name).absolute())) for name in ("meta", "data", "wal")}
        text = _CONFIGURATION.format(host=LOOPBACK, port=self.port, **folders)
        configuration = self._configure("influxdb.conf", text).absolute()
        return self._launch(instance, [str(self.program), "run", "-config", str(configuration)], text)

    def waiting_for(self) -> str | None:
        """See `Server`. Makes the user and the database as soon as it can."""
        try:
            if self._ask(f"CREATE DATABASE {_DATABASE}") == 200:
                return None
            self._ask(f"CREATE USER {_USER} WITH PASSWORD '{self._password()}' WITH ALL PRIVILEGES")
            return None if self._ask(f"CREATE DATABASE {_DATABASE}") == 200 else "its database"
        except OSError:
            return f"port {self.port}"

    def _ask(self, query: str) -> int:
        login = base64.b64encode(f"{_USER}:{self._password()}".encode()).decode()
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
