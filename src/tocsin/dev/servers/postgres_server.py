"""A PostgreSQL on loopback, without a socket file."""

from __future__ import annotations

import os
import shutil
import subprocess

from tocsin.declare.model.errors import ConfigError
from tocsin.dev.servers.guarded_server import GuardedServer
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.supervise.runners.runner import Launch

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
