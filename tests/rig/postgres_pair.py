"""A PostgreSQL and its standby, one of which takes over behind the one address that clients know."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.rig.sink_servers import SinkServer
from tests.rig.tcp_proxy import TcpProxy, tcp_proxy
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.dev.servers.sink_servers import KINDS

_SECONDS = 60.0


@dataclass(frozen=True)
class PostgresPair:
    """A primary that confirms nothing which its standby does not have, so that a failover loses nothing."""

    primary: SinkServer
    standby: SinkServer
    proxy: TcpProxy

    @property
    def address(self) -> str:
        """The address that leads to whichever is the primary."""
        return self.primary.address.replace(f":{self.primary.port}/", f":{self.proxy.port}/")

    def lose_primary(self) -> None:
        self.primary.kill()
        self.proxy.hang_up()

    def promote_standby(self) -> None:
        """Make the standby the primary, and lead the address there."""
        _do(self.standby, "SELECT pg_promote()")
        self.proxy.lead_to(self.standby.port)


@contextmanager
def postgres_pair(folder: Path) -> Iterator[PostgresPair]:
    for name in ("primary", "standby"):
        (folder / name).mkdir(parents=True)
    primary = SinkServer("postgres", folder / "primary")
    standby = SinkServer("postgres", folder / "standby")
    try:
        primary.start()
        _copy(primary, folder)
        standby.start()
        _do(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        with tcp_proxy(primary.port) as proxy:
            yield PostgresPair(primary, standby, proxy)
    finally:
        primary.close()
        standby.close()


def _copy(primary: SinkServer, folder: Path) -> None:
    program = KINDS["postgres"].find()
    assert program is not None
    await_that(lambda: _do(primary, "SELECT 1"), _SECONDS)
    password = (folder / "primary" / "password").read_text()
    shutil.copy(folder / "primary" / "password", folder / "standby" / "password")
    subprocess.run(
        [str(program.resolve().parent / "pg_basebackup"), "--host", LOOPBACK, "--port", str(primary.port),
         "--username", "tocsin", "--pgdata", str(folder / "standby" / "data"), "--write-recovery-conf",
         "--checkpoint", "fast"],
        env={**os.environ, "PGPASSWORD": password}, check=True, capture_output=True, timeout=_SECONDS,
    )  # fmt: skip


def _do(server: SinkServer, *statements: str) -> bool:
    """Run `statements`; false while the server does not take them yet."""
    try:
        with psycopg.connect(server.address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
    except psycopg.OperationalError:
        return False
    return True
