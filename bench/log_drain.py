"""The log drain beside bare ASGI applications that write what comes, and 100,000 lines of which a fifth comes twice."""

from __future__ import annotations

import base64
import json
import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench.drain_sender import BatchSender
from bench.figures import Goal, Spread, table
from bench.http_load import Asked, ask
from bench.processes import Program, await_that
from bench.rig import Rig, Site
from tocsin.declare.model.names import DRAIN, ingest_job
from tocsin.declare.model.source import is_tick
from tocsin.declare.setting_blocks import DrainSettings
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.kafka.reader import TopicReader
from tocsin.setup.paths import here

DRAIN_NAME, WHOLE, LINES = "log drain", "bare, one record a request", "bare, one record a line"
SIZES = (1, 100)
_SOURCE, _PASSWORD = "router", "bench"
_LINES, _REPEAT = 100_000, 0.2
_LINE = (
    b'<158>1 2026-01-31T14:05:09.123456+00:00 host heroku router - at=info method=GET path="/cart?a=%d" '
    b"host=shop.example.com request_id=%s dyno=web.1 connect=1ms service=18ms status=200 bytes=1548 protocol=https"
)


@dataclass
class Drained:
    """All of it.

    Attributes:
        asked: by name of the server and lines a request.
        sent, repeated: lines that were sent, and batches of them that were sent twice.
        stored: records of the raw topic; `events` and `distinct`: those of the events topic, and their identities.
    """

    asked: dict[tuple[str, int], Asked] = field(default_factory=dict)
    sent: int = 0
    repeated: int = 0
    stored: int = 0
    events: int = 0
    distinct: int = 0


def measure(rig: Rig, seconds: float, rounds: int) -> Drained:
    """Each server in turn, forth and back, with each size of a request; then the lines that come twice."""
    found = Drained()
    site, port = _site(rig, "drained")
    ports = free_ports(2)
    topic = site.names.raw(_SOURCE)
    bare = (sys.executable, Path(__file__).parent / "bare_asgi.py")
    with ExitStack() as stack:
        servers: dict[str, tuple[Program, int]] = {DRAIN_NAME: (stack.enter_context(rig.job(site, DRAIN)), port)}
        for name, how, free in ((WHOLE, "whole", ports[0]), (LINES, "lines", ports[1])):
            command: list[str | Path] = [*bare, str(free), rig.servers, topic, how]
            servers[name] = (stack.enter_context(Program(command, site.folder / f"{how}.log")), free)
        await_that(lambda: site.runs(DRAIN), 60, "the drain", servers[DRAIN_NAME][0])
        time.sleep(2.0)
        for number in range(rounds):
            for size in SIZES:
                for name in list(servers) if number % 2 == 0 else reversed(list(servers)):
                    asked = found.asked.setdefault((name, size), Asked())
                    ask(*servers[name], partial(_request, size), asked, seconds / rounds)
                    print(f"{name}, {size} lines: {asked.per_core:.0f} requests a CPU-second", flush=True)
    _repeat(rig, found)
    return found


def _site(rig: Rig, name: str) -> tuple[Site, int]:
    (port,) = free_ports(1)
    site = rig.site(name, {}, source=here().root / "examples" / "routes" / "sources" / f"{_SOURCE}.toml")
    passwords = site.folder / "passwords"
    passwords.write_text(f"{_SOURCE}:{_PASSWORD}\n", encoding="utf-8")
    passwords.chmod(0o600)
    drain = DrainSettings(credentials_file=passwords, port=port)
    return replace(site, settings=site.settings.model_copy(update={"drain": drain})), port


def _request(size: int) -> bytes:
    lines = (_LINE % (number, secrets.token_hex(8).encode()) for number in range(size))
    body = b"".join(b"%d %s" % (len(line), line) for line in lines)
    login = base64.b64encode(f"{_SOURCE}:{_PASSWORD}".encode())
    headers = {
        b"Host": b"127.0.0.1", b"Authorization": b"Basic " + login, b"Content-Type": b"application/logplex-1",
        b"Logplex-Msg-Count": b"%d" % size, b"Logplex-Drain-Token": b"d.bench",
        b"Logplex-Frame-Id": secrets.token_hex(16).encode(), b"Content-Length": b"%d" % len(body),
    }  # fmt: skip
    head = b"".join(b"%s: %s\r\n" % pair for pair in headers.items())
    return b"POST /logs HTTP/1.1\r\n%s\r\n%s" % (head, body)


def _repeat(rig: Rig, found: Drained) -> None:
    """Send 100,000 lines through drain and ingest, a fifth of the batches twice, and count what has come of them."""
    site, port = _site(rig, "repeated")
    job = ingest_job(_SOURCE)
    with rig.job(site, DRAIN) as drain, rig.job(site, job) as ingest:
        await_that(lambda: site.runs(DRAIN, job), 120, "drain and ingest", drain, ingest)
        sender = BatchSender(f"http://127.0.0.1:{port}/logs", _SOURCE, _PASSWORD, repeat=_REPEAT)
        sender.send(_LINE % (number, b"%016x" % number) for number in range(_LINES))
        found.sent, found.repeated = sender.sent.lines, sender.sent.repeats
        found.stored = _count(site, site.names.raw(_SOURCE))[0]
        await_that(
            lambda: _count(site, site.names.events(_SOURCE))[0] >= found.stored, 120, "all events", drain, ingest
        )
        found.events, found.distinct = _count(site, site.names.events(_SOURCE))


def _count(site: Site, topic: str) -> tuple[int, int]:
    """Count the records of `topic` that are no ticks, and the identities of those that are events."""
    count, identities = 0, set()
    with TopicReader(site.settings, "bench", topic) as reader:
        for message in reader.read(*reader.bounds()):
            value = message.value() or b""
            if not is_tick(value):
                count += 1
                if value.startswith(b'{"raw_topic"'):
                    event = json.loads(value)
                    identities.add((event["raw_topic"], event["raw_partition"], event["raw_offset"]))
    return count, len(identities)


def report(found: Drained) -> tuple[str, list[Goal]]:
    """The tables, and the goals."""
    rows = []
    for (name, size), asked in found.asked.items():
        paced = Spread.of(asked.paced)
        rows.append(
            {
                "server": name, "lines a request": size, "requests a CPU-second": asked.per_core,
                "lines a CPU-second": asked.per_core * size, "requests a second": asked.requests / asked.seconds,
                "ms at half load p50": paced.p50, "p95": paced.p95, "p99": paced.p99,
            }
        )  # fmt: skip
    repeats = {
        "lines": found.sent, "batches sent twice": found.repeated, "raw records": found.stored,
        "events": found.events, "different events": found.distinct,
    }  # fmt: skip
    goals = []
    for size in SIZES:
        drain = found.asked[DRAIN_NAME, size]
        for bare in (WHOLE, LINES):
            ratio = drain.per_core / found.asked[bare, size].per_core
            goals.append(Goal(f"drain beside {bare}, {size} a request", ratio, 0.5, at_least=True))
        goals.append(Goal(f"p99 at half load, {size} lines a request", Spread.of(drain.paced).p99, 100, " ms"))
    goals.append(Goal("lines lost or counted twice", abs(found.distinct - found.sent), 0))
    return f"{table(rows)}\n\n{table([repeats])}", goals
