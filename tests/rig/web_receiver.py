"""A real HTTP server that notes what it is asked, and whose answers a test may choose."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANGS, DROPS = 0, -1


@dataclass
class Taken:
    """A request that came, when by the monotonic clock, and the status that it was answered."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int


class WebReceiver(ThreadingHTTPServer):
    """Answers a path with `status(path)` and `answer_headers`; `HANGS` is no answer, at `DROPS` the connection ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status: Callable[[str], int] = lambda path: 202
        self.answer_headers: dict[str, str] = {}
        self.taken: list[Taken] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def paths(self) -> list[str]:
        return [taken.path for taken in self.taken]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, WebReceiver)
        now, status = time.monotonic(), server.status(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        server.taken.append(Taken(now, self.command, self.path, headers, body, status))
        if status == HANGS:
            server.released.wait()
        if status in (HANGS, DROPS):
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in server.answer_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"so says\r\nthe receiver")

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_receiver() -> Iterator[WebReceiver]:
    with WebReceiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()
