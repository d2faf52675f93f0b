"""The health page of Airflow's API, with what a test makes it say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tocsin.dev.servers.ports import free_ports


class Health(BaseHTTPRequestHandler):
    told: dict[str, Any] = {}  # noqa: RUF012 - set by each test

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.told).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[int]:
    (port,) = free_ports(1)
    with HTTPServer(("127.0.0.1", port), Health) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield port
        server.shutdown()
        thread.join()
