"""An object store of a test: moto's server on a port of its own, behind a wire that can be cut."""

import contextlib
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem

from tests.rig.tcp_proxy import TcpProxy
from tests.rig.waiting import await_that
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.dev.servers.ports import accepts, free_ports

BUCKET, KEY = "checkpoints-of-tests", "tester"
_LONGEST_HEAD = 4096
_KEY = re.compile(rb"Credential=([^/]+)/")
SECRET = "hush-of-tests"
"""The key that must stand nowhere but in the file of credentials."""
OTHER_PROFILE = "strange"
"""Another profile in that file; nothing may use it."""


class Wire(TcpProxy):
    """The connections to a store, until they are cut: by hand, or at a request.

    Attributes:
        keys: the access keys that requests have come with.
        slowness: the seconds that a request waits in which the pattern is found; None if none does.
    """

    def __init__(self, target: int) -> None:
        self.is_cut = False
        self.keys = set[str]()
        self.slowness: tuple[re.Pattern[bytes], float] | None = None
        self.most_bytes: int | None = None  # of one request, before the connection breaks; None for any number
        self._cut_at: tuple[re.Pattern[bytes], int] | None = None
        self._call_at: tuple[re.Pattern[bytes], Callable[[], None]] | None = None
        super().__init__(target)

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `mend`."""
        self.is_cut = True
        self.hang_up()

    def cut_at(self, pattern: bytes, nth: int = 1) -> None:
        """Cut as soon as a request comes that `pattern` is found in, the `nth` such; it does not reach the server."""
        self._cut_at = re.compile(pattern), nth

    def call_at(self, pattern: bytes, action: Callable[[], None]) -> None:
        """Call `action` before a request reaches the server that `pattern` is found in, the first such."""
        self._call_at = re.compile(pattern), action

    def slow_down(self, seconds: float, pattern: bytes = b"") -> None:
        """Let each request wait that `pattern` is found in, until `mend`."""
        self.slowness = re.compile(pattern), seconds

    def mend(self) -> None:
        self.is_cut, self.most_bytes, self._cut_at, self.slowness = False, None, None, None

    def _serve(self, client: socket.socket) -> None:
        if self.is_cut:
            client.close()
        else:
            super()._serve(client)

    def _inspection(self) -> Callable[[bytes], bool]:
        passed, before = 0, b""

        def passes(data: bytes) -> bool:
            nonlocal passed, before
            passed += len(data)
            if begun := _KEY.findall(data):
                self.keys |= {one.decode() for one in begun}
                self._before(data)
            if self._is_fatal(before, data):
                self.cut()
                return False
            before = data[-_LONGEST_HEAD:]
            return self.most_bytes is None or passed <= self.most_bytes

        return passes

    def _before(self, request: bytes) -> None:
        if self._call_at is not None and self._call_at[0].search(request):
            action, self._call_at = self._call_at[1], None
            action()
        if self.slowness is not None and self.slowness[0].search(request):
            time.sleep(self.slowness[1])

    def _is_fatal(self, before: bytes, data: bytes) -> bool:
        """Return whether `data`, which follows `before` on its connection, holds the request to cut at."""
        if self._cut_at is None:
            return False
        pattern, left = self._cut_at
        left -= sum(found.end() > len(before) for found in pattern.finditer(before + data))
        self._cut_at = pattern, left
        return left <= 0


class ObjectStoreServer:
    """The server with one bucket, what a project needs to use it, and its `wire`."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self._direct = f"127.0.0.1:{port}"
        self._log = (folder / "object-store.log").open("wb")
        command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.wire = Wire(port)
        self.credentials = folder / "credentials"
        login = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        self.credentials.write_text(f"[default]\n{login}[{OTHER_PROFILE}]\n{login.replace(KEY, 'stranger')}")
        await_that(lambda: accepts(port), 60)
        self.files().create_dir(BUCKET)

    def settings(self, prefix: str, bucket: str = BUCKET) -> StorageSettings:
        """Settings that put checkpoints below `prefix`, through the wire."""
        return StorageSettings(
            checkpoints=f"s3a://{bucket}/{prefix}",
            s3_endpoint=f"http://127.0.0.1:{self.wire.port}",
            s3_credentials_file=self.credentials,
        )

    def history_settings(self, prefix: str) -> StorageSettings:
        """Settings that put history below `prefix`, through the wire, and leave checkpoints on the disk."""
        uri = f"s3a://{BUCKET}/{prefix}"
        return self.settings(prefix).model_copy(update={"checkpoints": None, "history": uri})

    def files(self) -> S3FileSystem:
        """All that it holds, around the wire."""
        return S3FileSystem(
            endpoint_override=self._direct,
            scheme="http",
            region="us-east-1",
            access_key=KEY,
            secret_key=SECRET,
            allow_bucket_creation=True,
        )

    def deny(self, after: int = 0) -> None:
        """Let it ask from now on, or after so many requests, for rights that nobody has."""
        address, kind = f"http://{self._direct}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(address, str(after).encode(), kind), timeout=10).close()

    def allow(self) -> None:
        self.deny(after=10**9)

    def close(self) -> None:
        self.wire.close()
        self._process.terminate()
        self._process.wait()
        self._log.close()


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStoreServer]:
    server = ObjectStoreServer(folder)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreServer]:
    """One object store for all tests of a process. Take prefixes of your own, and mend what you break."""
    with object_store(tmp_path_factory.mktemp("store")) as store:
        yield store
