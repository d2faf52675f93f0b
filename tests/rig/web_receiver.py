"""A real HTTP server that takes alerts, whose answers a test may choose."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANGS, DROPS = 0, -1


@dataclass
class Taken:
    """A request that came, and the status that it was answered."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int


class WebReceiver(ThreadingHTTPServer):
    """Answers `status` with `answer_headers`; `HANGS` is no answer, and at `DROPS` the connection ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 202
        self.answer_headers: dict[str, str] = {}
        self.taken: list[Taken] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, WebReceiver)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.taken.append(Taken(self.path, {k.lower(): v for k, v in self.headers.items()}, body, server.status))
        if server.status == HANGS:
            server.released.wait()
        if server.status in (HANGS, DROPS):
            self.close_connection = True
            return
        self.send_response(server.status)
        for name, value in server.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"so says\r\nthe receiver")

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_receiver() -> Iterator[WebReceiver]:
    """Run it on a free port of loopback."""
    with WebReceiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()
