"""What is written to an InfluxDB, by a server that keeps points as one does: by measurement, tags and time."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.unit.views.view_scene import NOON, view_row, view_spec
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.views.sinks.influx_sink import InfluxSink
from tocsin.views.sinks.sink import SinkBatch
from tocsin.views.stored_row import StoredRow

START = 1_795_089_600_000_000_000


class Server(ThreadingHTTPServer):
    """Keeps the fields of points; refuses a batch that holds the word `bad`, and everything while `status` says so."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.points: dict[tuple[str, str], str] = {}
        self.headers: list[str | None] = []
        self.removals: list[dict[str, str]] = []
        self.status = 204


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.headers.append(self.headers["Authorization"])
        status = 400 if "bad" in text else self.server.status
        if self.path == "/api/v2/delete?org=o&bucket=b":
            self.server.removals.append(json.loads(text))
        elif status == 204:
            for line in text.split("\n"):
                series, rest = re.split(r"(?<!\\) ", line, maxsplit=1)
                fields, _, at = rest.rpartition(" ")
                self.server.points[series, at] = fields
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def stored(word: str, count: Any, window: int | None = 0, **values: Any) -> StoredRow:
    row = view_row(word, count, window=window, **values)
    return StoredRow.of(row, ("word",), row.identity, (0, 1, NOON))


def sink_of(server: Server, login: str = "", path: str = "/write?db=x") -> InfluxSink:
    return InfluxSink(f"http://{login}127.0.0.1:{server.server_port}{path}", "", view_spec(table="counts"))


def test_a_point_takes_the_place_of_itself(server: Server) -> None:
    sink = sink_of(server)
    assert sink.offsets() is None
    sink.replace([stored("a", 1), stored("b c,d=e", 1.5, None, text='say "hi"\\', yes=True, no=None)], [], {0: 2})
    sink.apply(SinkBatch([stored("a", 2), stored("none", None)], [], {0: 4}))
    sink.apply(SinkBatch([stored("a", 2)._replace(is_final=True)], [], {0: 4}))
    assert server.points == {
        ("counts,word=a", f"{START}"): "count=2i,final=true",
        ("counts,word=b\\ c\\,d\\=e", f"{START}"): r'count=1.5,text="say \"hi\"\\",yes=true',
    }
    assert sink.offsets() == {0: 4}


def test_a_refused_row_holds_nothing_up(server: Server) -> None:
    sink = sink_of(server)
    sink.replace([stored(word, 1) for word in ("a", "bad", "c", "d", "bad2")], [], {0: 1})
    assert sorted(series for series, _ in server.points) == ["counts,word=a", "counts,word=c", "counts,word=d"]
    assert sink.refused == 2


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_a_server_that_does_not_take_it_is_waited_for(server: Server, status: int) -> None:
    server.status = status
    with pytest.raises(TransientError, match=str(status)):
        sink_of(server).replace([stored("a", 1)], [], {0: 1})


def test_logins(server: Server) -> None:
    sink_of(server, "me:secret@").replace([stored("a", 1)], [], {0: 1})
    sink_of(server, ":token@", "/api/v2/write?org=o&bucket=b").replace([stored("a", 1)], [], {0: 1})
    assert server.headers == ["Basic bWU6c2VjcmV0", "Token token"]


def test_removals_of_version_2(server: Server) -> None:
    sink = sink_of(server, ":token@", "/api/v2/write?org=o&bucket=b")
    sink.apply(SinkBatch([], [stored('say "hi"\\', 1), stored("b", 1, None)], {0: 1}))
    assert server.removals == [
        {
            "start": "2026-11-19T12:00:00.000000Z",
            "stop": "2026-11-19T12:00:00.000000Z",
            "predicate": '"_measurement"="counts" AND "word"="say \\"hi\\"\\\\ "',
        },
        {
            "start": "1700-01-01T00:00:00.000000Z",
            "stop": "2200-01-01T00:00:00.000000Z",
            "predicate": '"_measurement"="counts" AND "word"="b"',
        },
    ]


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="no address of an InfluxDB"):
        InfluxSink("http://127.0.0.1:8086", "", view_spec())
    with pytest.raises(TransientError):
        InfluxSink("http://127.0.0.1:1/write?db=x", "", view_spec()).replace([stored("a", 1)], [], {0: 1})
