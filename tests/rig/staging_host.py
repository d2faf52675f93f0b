"""A web server that a replay sends requests to: it notes them, and hangs or fails when it is told to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StagingHost(ThreadingHTTPServer):
    """Answers with 200, or with 500 if the path says "broken"; notes the requests and when they came."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str, str]] = []
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def paths(self) -> list[str]:
        return [path for _, _, path in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((time.monotonic(), self.command, self.path))
        if server.hangs.is_set():
            server.goes_on.wait(20)
        self.send_response(500 if "broken" in self.path else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def staging_host() -> Iterator[StagingHost]:
    with StagingHost() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.goes_on.set()
            server.shutdown()
            thread.join()
