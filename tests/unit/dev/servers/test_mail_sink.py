import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tocsin.declare.model.errors import TransientError
from tocsin.dev.servers.mail_sink import Mail, Mailbox


class _Sink(BaseHTTPRequestHandler):
    answer = b"[]"

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/mails.json" else 404)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Sink)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_mails_come_in_the_order_of_their_arrival(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        {"id": "a", "subject": "one", "to": []},
        {"id": "b", "subject": "two", "text": "x\n", "to": [{"address": "b@example.com"}]},
    ]
    monkeypatch.setattr(_Sink, "answer", json.dumps(listed).encode())
    assert Mailbox(address).mails() == [
        Mail("a", "", "one", "", f"{address}mail/a"),
        Mail("b", "b@example.com", "two", "x", f"{address}mail/b"),
    ]


def test_an_empty_sink_has_no_mails(address: str) -> None:
    assert Mailbox(address).mails() == []


def test_a_sink_that_is_away_or_confused_may_come_back(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Sink, "answer", b"<html>")
    with pytest.raises(TransientError, match="does not answer"):
        Mailbox(address).mails()
    with pytest.raises(TransientError, match="does not answer"):
        Mailbox("http://127.0.0.1:1").mails()
