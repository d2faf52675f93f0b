"""The programs of Airflow's components, as far as they do not need Airflow."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tocsin.airflow import component


def test_the_scheduler_waits_until_the_api_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "_TRY_SECONDS", 0.01)
    answers, asked = iter([503, 503, 200]), []

    class Starting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Starting) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        component.await_api(f"http://127.0.0.1:{server.server_port}/execution/")
        server.shutdown()
        thread.join()
    assert asked == ["/api/v2/version"] * 3
