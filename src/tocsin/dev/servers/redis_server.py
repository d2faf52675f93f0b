"""A Redis on loopback that keeps what it was told in a file."""

from __future__ import annotations

import json

from tocsin.dev.servers.guarded_server import GuardedServer
from tocsin.dev.servers.ports import LOOPBACK
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
        """Describe the process to start.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = json.dumps(str(self.folder.absolute()))
        text = _CONFIGURATION.format(host=LOOPBACK, port=self.port, folder=folder, password=self._password())
        return self._launch(instance, [str(self.program), str(self._configure("redis.conf", text).absolute())], text)
