"""What is answered to whom, asked as an ASGI server asks."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ingest.log_drain.drain_source import basic, source
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.source import Format
from tocsin.declare.setting_blocks import DrainSettings
from tocsin.ingest.log_drain import endpoint as module
from tocsin.ingest.log_drain.batch import Batch
from tocsin.ingest.log_drain.endpoint import Credentials, Endpoint, read_passwords

FRAME = b"3 k=v"
LOGPLEX = {"content-type": "application/logplex-1", "logplex-frame-id": "f", "logplex-drain-token": "d."}
CATALOG = Catalog(
    sources={"router": source(), "logins": source(Format.JSON, name="logins")},
    broken={"sources/torn": ConfigError.one("sources/torn.toml", "is torn")},
)


class Drain:
    """An endpoint that keeps what it stores."""

    def __init__(self, **settings: Any) -> None:
        self.stored: list[Batch] = []
        self.trouble: Exception | None = None
        users = Credentials({name: "p" for name in ("router", "logins", "gone", "torn")})
        self.endpoint = Endpoint(CATALOG, DrainSettings(**settings), users, self._store)

    async def _store(self, batch: Batch) -> None:
        if self.trouble:
            raise self.trouble
        self.stored.append(batch)

    def ask(
        self, path: str, *chunks: bytes, user: str | None = "router:p", method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and body of the answer; 0 when there is none. Without chunks the client hangs up."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        if user is not None:
            named["authorization"] = basic(user).decode()
        scope = {"type": "http", "method": method, "path": path}
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
            for number, chunk in enumerate(chunks, start=1)
        ]
        messages = messages or [{"type": "http.disconnect"}]
        answers: list[Any] = []

        async def receive() -> Any:
            if not messages:
                await asyncio.sleep(60)
            return messages.pop(0)

        async def send(message: Any) -> None:
            answers.append(message)

        pairs = [(name.encode(), text.encode()) for name, text in named.items()]
        held = self.endpoint._reserved
        asyncio.run(self.endpoint(scope | {"headers": pairs}, receive, send))
        assert self.endpoint._reserved == held
        if not answers:
            return 0, {}, ""
        start, body = answers
        return start["status"], {n.decode(): t.decode() for n, t in start["headers"]}, body["body"].decode()


def test_frames_are_stored_and_acknowledged_without_a_body() -> None:
    drain = Drain()
    assert drain.ask("/logs", FRAME, FRAME, logplex_msg_count="2", **named(LOGPLEX)) == (204, {}, "")
    assert drain.ask("/logs", FRAME * 2, **named(LOGPLEX))[0] == 204
    first, second = drain.stored
    assert first == second
    assert first.records == ((0, b"k=v"), (1, b"k=v"))
    assert len(first.identity) == 32
    assert drain.endpoint.counts == {"requests": 2, "lines": 4, "left_out": 0, "lost": 0}


def named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): text for name, text in headers.items()}


def test_lines_are_stored_for_the_source_of_the_path() -> None:
    drain = Drain()
    for body, key in ((b"{}\n{}", "1"), (b"{}\n{}", "1"), (b"[]\n{}", "1"), (b"{}\n{}", "2"), (b"{}", "")):
        assert drain.ask("/events/logins", body, user="logins:p", idempotency_key=key)[0] == 204
    first, again, other_body, other_key, without = drain.stored
    assert (first, len(first.records), without.identity) == (again, 2, "")
    assert len({first.identity, other_body.identity, other_key.identity}) == 3


@pytest.mark.parametrize(
    ("path", "asked", "status", "told"),
    [
        ("/logs", {"user": None}, 401, "basic authentication"),
        ("/logs", {"user": "router:q"}, 401, "basic authentication"),
        ("/logs", {"user": "gone:p"}, 404, "no source 'gone'"),
        ("/events/login", {"user": "logins:p"}, 404, "did you mean 'logins'?"),
        ("/events/login", {"user": "x:p"}, 401, ""),
        ("/events/logins", {}, 403, "that of router"),
        ("/events", {}, 404, "POST /logs"),
        ("/logs/router", {}, 404, "POST /logs"),
        ("/", {}, 404, "POST /logs"),
        ("/logs", {"method": "GET"}, 405, "only POST"),
        ("*", {"method": "OPTIONS", "user": None}, 404, "POST /logs"),
        ("logs", {"method": "CONNECT", "user": None}, 404, "POST /logs"),
        ("", {"user": None}, 404, "POST /logs"),
        ("//logs", {"user": None}, 404, "POST /logs"),
        ("/logs", {"content_type": "application/json"}, 415, "logplex"),
        ("/logs", {"content_encoding": "br"}, 415, "gzip"),
        ("/logs", {"content_encoding": "gzip"}, 400, "no gzip"),
        ("/logs", {"logplex_msg_count": "2"}, 400, "there are 1 frames"),
        ("/logs", {"content_length": "20971521"}, 413, "20,971,520"),
        ("/v1/logs", {"content_type": "text/plain"}, 415, "OTLP"),
        ("/v1/logs", {"content_type": "application/json"}, 400, "no logs in OTLP"),
        ("/events/torn", {"user": "torn:p"}, 503, "cannot be read now"),
    ],
)
def test_refusals(path: str, asked: dict[str, Any], status: int, told: str) -> None:
    drain = Drain()
    found, headers, body = drain.ask(path, FRAME, **asked)
    assert (found, told in body, drain.stored) == (status, True, [])
    assert ("www-authenticate" in headers) == (status == 401)
    assert int(headers["content-length"]) == len(body)


def test_a_long_body_is_refused_packed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 2000)
    drain = Drain()
    packed = gzip.compress(b"x" * 2001)
    assert drain.ask("/logs", b"x" * 1000, b"x" * 1001)[0] == 413
    assert drain.ask("/logs", packed, content_encoding="gzip")[0] == 413
    assert drain.ask("/logs", gzip.compress(FRAME), content_encoding="gzip")[0] == 204
    assert [drain.ask("/logs", gzip.compress(FRAME) + more, content_encoding="gzip")[0] for more in (b"x", FRAME)] == [
        400,
        400,
    ]
    assert drain.ask("/logs", gzip.compress(FRAME)[:-3], content_encoding="gzip")[0] == 400


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_default_batch_of_the_opentelemetry_collector_is_taken(encoding: str) -> None:
    record = {"timeUnixNano": "1767268799123456789", "body": {"stringValue": "x" * 1000}}
    batch = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record] * 8192}]}]}
    body = json.dumps(batch).encode()
    drain = Drain()
    sent = gzip.compress(body, 1) if encoding == "gzip" else body
    asked = {"content_type": "application/json", "content_encoding": encoding, "user": "logins:p"}
    assert drain.ask("/v1/logs", sent, **asked)[0] == 200
    assert len(drain.stored[0].records) == 8192


def test_what_another_attempt_may_cure_is_put_off() -> None:
    drain = Drain()
    drain.trouble = TransientError("Kafka is away")
    status, headers, body = drain.ask("/logs", FRAME)
    assert (status, headers["retry-after"], "Kafka is away" in body) == (503, "2", True)
    drain.trouble = None
    assert drain.ask("/logs", FRAME)[0] == 204
    assert drain.endpoint.counts["put_off"] == 1


def test_memory_is_bounded() -> None:
    drain = Drain()
    drain.endpoint._reserved = 67_108_860
    status, _, body = drain.ask("/logs", FRAME * 10)
    assert (status, "too much is waiting" in body) == (503, True)
    drain.endpoint._reserved = 0
    assert drain.ask("/logs", FRAME * 10)[0] == 204


def test_a_slow_body_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)
    drain = Drain()

    async def never() -> Any:
        await asyncio.sleep(60)

    answers: list[Any] = []

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(b"authorization", basic("router:p"))]
    scope = {"type": "http", "method": "POST", "path": "/logs", "headers": headers}
    asyncio.run(drain.endpoint(scope, never, send))
    assert answers[0]["status"] == 503
    assert (b"connection", b"close") in answers[0]["headers"]


def test_a_client_that_hangs_up_gets_nothing_and_leaves_nothing() -> None:
    drain = Drain()
    assert drain.ask("/logs") == (0, {}, "")
    assert drain.stored == []


@pytest.mark.parametrize(
    ("header", "who"),
    [
        (basic("router:a:b"), "router"),
        (basic("router:a:b").replace(b"Basic", b"basic"), "router"),
        (basic("router:a"), None),
        (basic("other:a:b"), None),
        (basic("other:"), None),
        (basic("router"), None),
        (b"Basic !", None),
        (b"Basic /w==", None),
        (b"Bearer a:b", None),
        (b"", None),
    ],
)
def test_who_sends(header: bytes, who: str | None) -> None:
    assert Credentials({"router": "a:b"}).source_of(header) == who


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "drain"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_file(tmp_path: Path) -> None:
    assert read_passwords(written(tmp_path, "# who\nrouter:a:b\n\nlogins:c\n")) == {"router": "a:b", "logins": "c"}


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("router:a", 0o640, "chmod 600"),
        ("router:a", 0o604, "chmod 600"),
        ("router:a\nrouter", 0o600, "drain:2: drain.credentials_file: must be source:password"),
        ("router:a\nrouter:b", 0o600, "drain:2: drain.credentials_file: is the second password of 'router'"),
        (":a", 0o600, "must be source:password"),
        ("", 0o600, "names no source"),
    ],
)
def test_a_faulty_file_says_what_to_do(tmp_path: Path, text: str, mode: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_passwords(written(tmp_path, text, mode))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_passwords(tmp_path / "none")
