"""Real servers of sinks, started as `tocsin dev up` starts them, on free ports and in folders of their own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.rig.waiting import await_that, awaited
from tocsin.dev.servers.ports import free_ports
from tocsin.dev.servers.sink_servers import KINDS
from tocsin.supervise.runners.local import LocalRunner

_SECONDS = 30.0


class SinkServer:
    """One server, which can be killed, and started again on the same port and data."""

    def __init__(self, kind: str, folder: Path) -> None:
        (port,) = free_ports(1)
        program = KINDS[kind].find()
        assert program is not None, f"run `make setup`, or {KINDS[kind].install}"
        self._folder, self.port, self.log = folder, port, folder / "log"
        self._server = KINDS[kind].server(folder, self.log, port, program)
        self._instance = f"test-{kind}-{port}"
        self._runner = LocalRunner(self._instance, lambda _: self.log, tethered=True)

    @property
    def address(self) -> str:
        return self._server.address

    def start(self) -> None:
        launch = self._server.launch(self._instance)
        configuration = self._folder / "data" / "postgresql.conf"
        if configuration.exists():  # tests end before the machine does
            configuration.write_text(f"{configuration.read_text()}\nfsync = off\n")
        self._runner.start(launch)
        await_that(lambda: self._server.waiting_for() is None, _SECONDS, self.log.read_text)

    def kill(self) -> None:
        self._end(force=True)

    def close(self) -> None:
        if not self._end(force=False):
            self._end(force=True)

    def _end(self, *, force: bool) -> bool:
        for process in self._runner.list():
            self._runner.stop(process, force=force)
        return awaited(lambda: not self._runner.list(), _SECONDS)


@contextmanager
def running(kind: str) -> Iterator[SinkServer]:
    with tempfile.TemporaryDirectory(prefix=f"tocsin-{kind}-", ignore_cleanup_errors=True) as folder:
        server = SinkServer(kind, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.close()


def emptied(address: str) -> str:
    """The address of a database of PostgreSQL with nothing in it: the same for each test, for making one takes long."""

    def empty() -> bool:
        try:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute("DROP SCHEMA IF EXISTS public CASCADE")
                connection.execute("CREATE SCHEMA public")
        except psycopg.OperationalError:  # it accepts connections a moment before it serves them
            return False
        return True

    await_that(empty, _SECONDS)
    return address
