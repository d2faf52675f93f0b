"""Views: from an event to its row in Redis, what upserts cost, and what answers over REST cost."""

from __future__ import annotations

import random
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.figures import Goal, Spread, table
from bench.http_load import Asked, ask
from bench.latency import RATE, Plan
from bench.load import Sender, Stream
from bench.processes import Program, await_that
from bench.rig import Rig, Site
from bench.systems import AT_LEAST_ONCE, TOCSIN
from bench.view_places import Place, RedisPlace, RedisTail, SqlitePlace
from bench.view_rig import VIEW, ViewRig, with_redis
from tocsin.declare.model.names import WEB, compute_job, view_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.views.row_store import store_path
from tocsin.views.stored_row import ViewRow
from tocsin.web.server import read_token

USERS = 20_000
PLAIN = "plain loop"
REST, BARE = "REST", "bare ASGI application"
_LIMIT_SECONDS = 900


@dataclass
class Timed:
    """What was measured of one system, over all rounds.

    Attributes:
        times: milliseconds from the append of an event to its row in Redis, by the clocks of both servers.
        missing: events without a row.
        cpu: seconds per second, while measured.
        rss: bytes at the end.
    """

    times: list[float] = field(default_factory=list)
    missing: int = 0
    cpu: float = 0.0
    rss: int = 0


@dataclass
class Applied:
    """What one way to apply rows took, over all rounds.

    Attributes:
        upserts: that were applied.
        cpu: seconds of its processes from its first row in the sink to its last.
        server: seconds of Redis meanwhile.
        seconds: that took.
        wrong: rows that were not what was written last.
    """

    upserts: int = 0
    cpu: float = 0.0
    server: float = 0.0
    seconds: float = 0.0
    wrong: int = 0


@dataclass
class Viewed:
    """All of it, by name of the system; `applied` by that and the kind of the sink."""

    timed: dict[str, Timed]
    applied: dict[tuple[str, str], Applied]
    asked: dict[str, Asked]


def measure(rig: Rig, plan: Plan, records: int) -> Viewed:
    """Latency, upserts and answers, each system in turn, forth and then back."""
    with with_redis(rig) as view_rig:
        found = Viewed(_latency(view_rig, plan), {}, {})
        upserts = _Upserts(view_rig, records)
        for number in range(plan.rounds):
            for way in list(upserts.ways) if number % 2 == 0 else reversed(list(upserts.ways)):
                upserts.apply(way, f"round{number}", found.applied.setdefault(way, Applied()))
                print(f"{way}: {found.applied[way]}", flush=True)
        upserts.fill_file()
        _answers(upserts, plan, found.asked)
        return found


def _latency(view_rig: ViewRig, plan: Plan) -> dict[str, Timed]:
    found = {TOCSIN: Timed(), AT_LEAST_ONCE: Timed()}
    for number in range(plan.rounds):
        for name in list(found) if number % 2 == 0 else reversed(list(found)):
            site = view_rig.site(f"views{number}{'t' if name == TOCSIN else 's'}", "redis")
            RedisPlace(view_rig.address, VIEW).clear()
            with ExitStack() as stack:
                jobs = (compute_job(VIEW), view_job(VIEW)) if name == TOCSIN else ()
                programs = [stack.enter_context(view_rig.rig.job(site, job)) for job in jobs]
                if not jobs:
                    programs.append(stack.enter_context(view_rig.streams(site, "streams", "count")))
                await_that(partial(site.runs, *jobs), 120, f"{name} to run", *programs)
                stream = Stream(Sender(view_rig.rig.servers), site.names.events(site.source), RATE)
                _time(stream, RedisTail(view_rig.address, VIEW), plan, found[name], programs)
            print(f"{name}: {Spread.of(found[name].times)}", flush=True)
    return found


def _time(stream: Stream, tail: RedisTail, plan: Plan, timed: Timed, programs: list[Program]) -> None:
    def cpu() -> float:
        return sum(program.cpu_seconds() for program in programs)

    with tail:
        stream.start()
        try:
            await_that(lambda: tail.seen, 120, "the first row", *programs)
            time.sleep(plan.warm_up)
            first, before, began = len(stream.sent), cpu(), time.monotonic()
            time.sleep(plan.measured)
            last = len(stream.sent)
            timed.cpu += (cpu() - before) / (time.monotonic() - began) / plan.rounds
            timed.rss = sum(program.memory().rss for program in programs)
        finally:
            stream.stop()
        time.sleep(5.0)
    for login in stream.sent[first:last]:
        seen = tail.seen.get(login.user, [])
        # A later event of the user may have come into the same row, so the first row that is as late counts.
        at = bisect_left(seen, login.micros, key=lambda one: one[0])
        if at == len(seen):
            timed.missing += 1
        else:
            timed.times.append(seen[at][1] - stream.sender.appended[login.cause])


class _Upserts:
    """Rows on the topics of two views, one for each sink, and the ways to apply them.

    Attributes:
        view_rig: where.
        sites: by the kind of the sink.
        truths: likewise, the last count of each row.
        ways: name of the system and kind of the sink, to what starts it.
    """

    def __init__(self, view_rig: ViewRig, records: int) -> None:
        self.view_rig, self._redis = view_rig, RedisPlace(view_rig.address, VIEW)
        self.sites = {sink: view_rig.site(f"upserts{sink}", sink) for sink in ("redis", "sqlite")}
        self.truths = {sink: fill(site, records) for sink, site in self.sites.items()}
        self.ways: dict[tuple[str, str], Callable[[str], tuple[Program, Place]]] = {
            (TOCSIN, "redis"): lambda _: (self._job("redis"), self._redis),
            (AT_LEAST_ONCE, "redis"): lambda name: (self._streams(name), self._redis),
            (PLAIN, "redis"): partial(self._plain, "redis"),
            (TOCSIN, "sqlite"): lambda _: (self._job("sqlite"), self._file("sqlite")),
            (PLAIN, "sqlite"): partial(self._plain, "sqlite"),
        }

    def apply(self, way: tuple[str, str], name: str, applied: Applied) -> None:
        """Apply a whole topic, and count from its first row on: what a start costs is no upsert."""
        self._redis.clear()
        self._file(way[1]).clear()
        truth = self.truths[way[1]]
        program, place = self.ways[way](name)
        with program:
            await_that(place.has_begun, _LIMIT_SECONDS, "the first row", program)
            cpu, other, began = program.cpu_seconds(), self.view_rig.redis.cpu_seconds(), time.monotonic()
            ends = [user for user in truth if user.startswith("end")]
            await_that(lambda: place.has(ends), _LIMIT_SECONDS, "the last row", program)
            applied.cpu += program.cpu_seconds() - cpu
            applied.server += self.view_rig.redis.cpu_seconds() - other
            applied.seconds += time.monotonic() - began
        applied.upserts += max(truth.values()) + 1
        applied.wrong += len(place.counts().items() ^ truth.items())

    def fill_file(self) -> None:
        """Apply the rows of the view that is kept in SQLite alone once more, for its readers."""
        self.apply((TOCSIN, "sqlite"), "", Applied())

    def _job(self, sink: str) -> Program:
        return self.view_rig.rig.job(self.sites[sink], view_job(VIEW))

    def _file(self, sink: str) -> SqlitePlace:
        return SqlitePlace(store_path(self.sites[sink].settings, VIEW), "rows")

    def _streams(self, name: str) -> Program:
        return self.view_rig.streams(self.sites["redis"], name, "copy")

    def _plain(self, sink: str, name: str) -> tuple[Program, Place]:
        site = self.sites[sink]
        file = SqlitePlace(site.folder / f"{name}.db", VIEW)
        where = self.view_rig.address if sink == "redis" else str(file.path)
        words = (self.view_rig.rig.servers, site.names.view(VIEW), f"{site.name}-plain-{name}", sink, where, VIEW)
        program = Program([sys.executable, Path(__file__).parent / "plain_applier.py", *words], site.log)
        return program, self._redis if sink == "redis" else file


def fill(site: Site, records: int) -> dict[str, int]:
    """Write rows of users in any order, few twice in a batch; returns the last count of each."""
    chance, truth = random.Random(3), dict[str, int]()
    bulk = {"linger.ms": 50, "compression.type": "lz4", "queue.buffering.max.messages": 500_000}
    topic = site.names.view(VIEW)
    with TopicReader(site.settings, "bench", topic) as reader:
        partitions = len(reader.partitions())
    with RecordWriter(site.settings, EVENT_BYTES, timeout_seconds=60.0, config=bulk) as writer:
        for number in range(records):
            left, user = records - number - 1, chance.randrange(USERS)
            name, partition = (f"user{user}", user % partitions) if left >= partitions else (f"end{left}", left)
            row = ViewRow(key={"user_id": name}, values={"count": number, "latest": number}, build="bench")
            writer.write(topic, row.model_dump_json(), row.identity, partition=partition)
            truth[name] = number
    return truth


def _answers(upserts: _Upserts, plan: Plan, asked: dict[str, Asked]) -> None:
    (port,) = free_ports(1)
    site, names = upserts.sites["sqlite"], list(upserts.truths["sqlite"])
    login = f"Authorization: Bearer {read_token(site.settings)}"
    chance = random.Random(4)

    def request() -> bytes:
        return f"GET /views/{VIEW}/{chance.choice(names)} HTTP/1.1\r\nHost: localhost\r\n{login}\r\n\r\n".encode()

    program, file = Path(__file__).parent / "bare_rows.py", store_path(site.settings, VIEW)
    with (
        upserts.view_rig.rig.job(site, WEB) as web,
        Program([sys.executable, program, str(port), file], site.log) as floor,
    ):
        await_that(lambda: site.runs(WEB), 60, "the job web", web, floor)
        time.sleep(2.0)
        servers = {REST: (web, site.settings.web.port), BARE: (floor, port)}
        for number in range(plan.rounds):
            for name in list(servers) if number % 2 == 0 else reversed(list(servers)):
                ask(*servers[name], request, asked.setdefault(name, Asked()), plan.measured / 4 / plan.rounds)
                print(f"{name}: {asked[name].per_core:.0f} requests a CPU-second", flush=True)


def report(found: Viewed) -> tuple[str, list[Goal]]:
    """The tables, and the goals."""
    timed = [
        {
            "event to Redis": name, "p50": spread.p50, "p95": spread.p95, "p99": spread.p99, "max": spread.worst,
            "events": spread.count, "missing": one.missing, "CPU %": 100 * one.cpu, "RSS MB": one.rss / 1e6,
        }
        for name, one in found.timed.items() for spread in (Spread.of(one.times),)
    ]  # fmt: skip
    per_core = {way: one.upserts / one.cpu for way, one in found.applied.items()}
    applied = [
        {
            "upserts": name, "sink": sink, "a CPU-second": round(per_core[name, sink]),
            "beside the plain loop": f"{per_core[name, sink] / per_core[PLAIN, sink]:.2f}",
            "a second": round(one.upserts / one.seconds), "us of Redis each": 1e6 * one.server / one.upserts,
            "rows wrong": one.wrong,
        }
        for (name, sink), one in found.applied.items()
    ]  # fmt: skip
    asked = [
        {
            "answers": name, "a CPU-second": round(one.per_core), "a second": round(one.requests / one.seconds),
            "ms at half load p50": paced.p50, "p95": paced.p95, "p99": paced.p99,
        }
        for name, one in found.asked.items() for paced in (Spread.of(one.paced),)
    ]  # fmt: skip
    ours, theirs = (Spread.of(found.timed[name].times).p95 for name in (TOCSIN, AT_LEAST_ONCE))
    beside = per_core[TOCSIN, "redis"] / per_core[AT_LEAST_ONCE, "redis"]
    goals = [
        Goal("p95 from event to Redis", ours, 50, " ms"),
        Goal("p95 beside Kafka Streams at least once", ours / theirs, 2, " x"),
        Goal("upserts a CPU-second beside Kafka Streams", beside, 1, " x", at_least=True),
        Goal("rows wrong after a million upserts", sum(one.wrong for one in found.applied.values()), 0),
    ]
    return "\n\n".join(table(rows) for rows in (timed, applied, asked)), goals
