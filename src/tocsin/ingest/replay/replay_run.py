"""One replay: its range, its pace, and where it goes on after it was broken off."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import threading
import time
from array import array
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, Self
from urllib.parse import quote, urlsplit

from confluent_kafka import KafkaError, Message
from pydantic import BaseModel

from tocsin.declare.blocks.receiver_settings import check_address
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.declare.model.source import RAW_RECORD, Source
from tocsin.declare.settings import Settings
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.ingest.replay.pace import PacedClock, ReplayPace
from tocsin.ingest.replay.recorded import RecordedEvent, ReplayRange, find_range, read_range
from tocsin.platform import state_file
from tocsin.platform.kafka.reader import Offsets, TopicReader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import missing_topic


class Target(Protocol):
    """Where events are sent."""

    name: str

    def refuses(self, event: RecordedEvent) -> str | None:
        """Say why `event` is left out; None if it is sent."""

    def send(self, event: RecordedEvent, ticket: Ticket) -> None:
        """Send `event`, now or as soon as it can; `ticket` is settled when that is done."""

    def poll(self) -> None:
        """Settle what is done meanwhile; called at least each second while no event is due."""

    def finish(self) -> None:
        """Wait until all tickets are settled that can be."""


class Replay:
    """One replay of a source. It commits nothing to Kafka, so nobody else's reading moves.

    `range` is that of the first run when this one goes on from there.
    """

    def __init__(
        self, settings: Settings, source: Source, name: str, wanted: tuple[datetime, datetime], *, restart: bool = False
    ) -> None:
        """Find the range, or the one of an earlier run under the same `name` that was not finished, unless `restart`.

        `wanted` are event times from the first up to the second.

        Raises:
            ConfigError: the topic does not exist.
            TransientError: Kafka cannot be reached; a retry helps.
            OSError: the state folder cannot be written.
        """
        self._file = settings.state / "replays" / f"{source.name}.{name}.json"
        self._topic = TopicReader(settings, f"replay.{source.name}.{name}", settings.names.events(source.name))
        if not self._topic.partitions():
            raise missing_topic(self._topic.name)
        earlier = None if restart else state_file.read(self._file, ReplayRange, None)
        self.resumed = earlier is not None
        self.range = earlier or find_range(self._topic, source, *wanted)
        # Not in Kafka: an offset that an earlier run of the same call has committed would be taken for one of this run.
        self._position = self.range.starts | self.range.position

    def count(self, target: Target, pace: ReplayPace) -> Counted:
        """Count what is left to send, without sending it."""
        events, left_out = 0, Counter[str]()
        first: datetime | None = None
        last: datetime | None = None
        for event in read_range(self._topic, self.range, self._position):
            if (reason := target.refuses(event)) is not None:
                left_out[reason] += 1
                continue
            events += 1
            first, last = min(first or event.time, event.time), max(last or event.time, event.time)
        span = (last - first).total_seconds() if first and last else 0.0
        return Counted(events=events, left_out=left_out, first=first, last=last, seconds=pace.seconds(span, events))

    def run(self, target: Target, pace: ReplayPace, progress: Progress, stop: threading.Event) -> bool:
        """Send the events until all are sent, or until `stop` is set; returns whether all are.

        An event may be sent again when this was killed: the last second of it.

        Raises:
            TransientError: Kafka or the target cannot be reached; the next run goes on.
            OSError: the state folder cannot be written.
        """

        def keep_up() -> None:
            target.poll()
            self._save_position(progress)

        self._save_position(progress)
        clock = PacedClock(pace, stop, keep_up)
        try:
            for event in read_range(self._topic, self.range, self._position):
                reason = target.refuses(event)
                if reason is None and not clock.wait_for(event.time):
                    break
                ticket = progress.begin(event)
                if reason is not None:
                    progress.leave_out(ticket, reason)
                else:
                    target.send(event, ticket)
                clock.turn()
        finally:
            try:
                target.finish()
            finally:
                self._save_position(progress)
        if stop.is_set():
            return False
        self._file.unlink(missing_ok=True)
        return True

    def _save_position(self, progress: Progress) -> None:
        position = self.range.position | progress.position()
        state_file.write(self._file, ReplayRange, self.range.model_copy(update={"position": position}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._topic.close()


def name_of(*texts: str) -> str:
    """Name a replay by what it was asked for, so that the same call goes on with it."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


_PATIENCE = 20
_SHOWN_BYTES = 1_048_576
_SAFE = "/?&=%:@!$'()*+,;~-._[]"


@dataclass(frozen=True, kw_only=True)
class Requests:
    """How events become requests.

    Attributes:
        method, path: columns with the method and the path of a request. Without a method it is GET.
    """

    method: str = "method"
    path: str = "path"
    allowed: frozenset[str] = frozenset({"GET"})
    connections: int = 16
    timeout_seconds: float = 10.0


class HttpTarget:
    """Sends requests. Bodies are not recorded, so none is sent; redirects are not followed."""

    def __init__(self, url: str, requests: Requests, progress: Progress) -> None:
        """Send to the server at `url`, counting in `progress`; ConfigError if it is no address."""
        try:
            parts = urlsplit(check_address(url, plain_http=True))
        except ValueError:
            parts = urlsplit("")
        if not parts.hostname or parts.query or parts.fragment:
            what = "is no address of a server; they look like https://staging.example.com, without a login"
            raise ConfigError.one(url, what)
        self.name, self._requests, self._progress = url, requests, progress
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._local, self._lock = threading.local(), threading.Lock()
        self._pool = ThreadPoolExecutor(requests.connections, thread_name_prefix="request")
        self._free = threading.Semaphore(requests.connections)
        self._connections: list[http.client.HTTPConnection] = []
        self._unanswered = 0

    def refuses(self, event: RecordedEvent) -> str | None:
        """Say why `event` is left out; None if it is sent."""
        method, path = self._method(event), event.values.get(self._requests.path)
        if not isinstance(path, str) or not path.startswith("/"):
            return "without a path"
        return None if method in self._requests.allowed else f"method {method}"

    def send(self, event: RecordedEvent, ticket: Ticket) -> None:
        """Send `event` as soon as a connection is free; TransientError if many requests in a row had no answer."""
        if self._unanswered >= _PATIENCE:
            raise TransientError(f"{self.name} has not answered {_PATIENCE} requests in a row")
        self._free.acquire()
        path = self._base + quote(event.values[self._requests.path], _SAFE)
        self._pool.submit(self._ask, self._method(event), path, ticket)

    def poll(self) -> None:
        """Do nothing: answers settle their tickets in threads of their own."""

    def finish(self) -> None:
        """Wait for the answers to all that was sent, and leave."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def _method(self, event: RecordedEvent) -> str:
        return str(event.values.get(self._requests.method) or "GET").upper()

    def _ask(self, method: str, path: str, ticket: Ticket) -> None:
        began = time.monotonic()
        outcome, failure = NO_ANSWER, ""
        try:
            connection = self._connection()
            connection.request(method, path, headers={"User-Agent": "tocsin-replay"})
            answer = connection.getresponse()
            if len(answer.read(_SHOWN_BYTES)) == _SHOWN_BYTES:
                connection.close()
            outcome = str(answer.status)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
            with contextlib.suppress(AttributeError):
                self._local.connection.close()
        finally:
            with self._lock:
                self._unanswered = self._unanswered + 1 if outcome == NO_ANSWER else 0
            self._progress.settle(ticket, outcome, time.monotonic() - began, failure)
            self._free.release()

    def _connection(self) -> http.client.HTTPConnection:
        """Keep one for each thread; it connects again by itself after it was closed."""
        if not hasattr(self._local, "connection"):
            connection = self._kind(self._host, self._port, timeout=self._requests.timeout_seconds)
            self._connections.append(connection)
            self._local.connection = connection
        own: http.client.HTTPConnection = self._local.connection
        return own


class TopicTarget:
    """Writes events of one source. Each has an identity, so an ingest behind counts one that is written again once."""

    def __init__(
        self, settings: Settings, source: Source, to: tuple[str, str], own: frozenset[str], progress: Progress
    ) -> None:
        """Write events of `source` to the topic in `to`; TransientError, where a retry helps, if Kafka is out of reach.

        With the topic stands the name of the replay: each has events of its own, however often it is broken off. `own`
        are topics that it must not be: they hold something else. ConfigError then, or if the topic does not exist.
        """
        topic, self._replay = to
        if topic in own:
            what = "is a topic of this installation; take raw.<another source>, or a topic of your own"
            raise ConfigError.one(topic, what)
        self.name, self._source, self._progress = topic, source, progress
        self._trouble = ""
        self._writer = RecordWriter(settings, RAW_BYTES, config={"linger.ms": 5, "compression.type": "lz4"})
        if not self._writer.has_topic(topic):
            raise missing_topic(topic)

    def refuses(self, event: RecordedEvent) -> str | None:
        """Leave out nothing."""
        return None

    def send(self, event: RecordedEvent, ticket: Ticket) -> None:
        """Hand over `event`; TransientError if Kafka takes nothing: running the replay again sends what is missing."""
        self._judge()
        began = time.monotonic()

        def acknowledge(error: KafkaError | None, _: Message) -> None:
            if error is not None and error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                self._trouble = error.str()  # the ticket stays open, so the next run sends it again
                return
            outcome = "written" if error is None else REFUSED
            self._progress.settle(ticket, outcome, time.monotonic() - began, error.str() if error else "")

        # A field of its own with the whole path as its name is read first, so nothing has to be nested again.
        fields = {name: self._source.field_of(name) for name in self._source.columns if name in event.values}
        columns = {field: event.values[name] for name, field in fields.items() if field != RAW_RECORD}
        batch = hashlib.sha256(f"{self._replay}/{event.origin}".encode()).hexdigest()[:32]
        identity = f"{batch}/{event.values['raw_offset']}".encode()
        key = str(event.values.get(self._source.key, ""))
        value = json.dumps(columns, ensure_ascii=False).encode("utf-8", "surrogatepass")
        headers = [(BATCH_HEADER, identity)]
        if not self._writer.write(self.name, value, key, on_delivery=acknowledge, headers=headers):
            self._progress.settle(ticket, REFUSED, 0.0, "it is longer than Kafka takes")

    def poll(self) -> None:
        """Hear what Kafka has stored; TransientError, as `send`, if it has not stored something."""
        self._writer.poll()
        self._judge()

    def finish(self) -> None:
        """Wait until all is written; TransientError, as `send`, if it cannot be."""
        self._writer.flush()
        self._judge()

    def _judge(self) -> None:
        if self._trouble:
            raise TransientError(f"not all events reached {self.name}: {self._trouble}")


NO_ANSWER = "no answer"
REFUSED = "refused"

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Counted(BaseModel, frozen=True):
    """What a replay would send."""

    events: int
    left_out: dict[str, int]
    first: datetime | None
    last: datetime | None
    seconds: float


class ReplayReport(BaseModel, frozen=True):
    """What became of the events of a replay.

    Attributes:
        outcomes: how many had each HTTP status, "no answer", "written" or "refused".
        latency: seconds until the answer, or until Kafka had it, by "p50", "p95", "p99" and "max"; null without any.
    """

    planned: Counted
    done: bool
    outcomes: dict[str, int]
    left_out: dict[str, int]
    latency: dict[str, float] | None
    failure: str

    @property
    def has_failed(self) -> bool:
        """Return whether an event had no answer, one of 500 or more, or was refused."""
        return any(outcome in (NO_ANSWER, REFUSED) or outcome.startswith("5") for outcome in self.outcomes)


@dataclass
class Ticket:
    """An event that is under way: `offset` is the one behind it."""

    partition: int
    offset: int
    settled: bool = False


@dataclass
class Progress:
    """Counts of outcomes, and of what was not sent by reason. Targets settle tickets from threads of their own.

    Latencies are in seconds, of each that was sent; `failure` is the last one, in words.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    latencies: array[float] = field(default_factory=lambda: array("d"))
    failure: str = ""
    _under_way: dict[int, deque[Ticket]] = field(default_factory=dict)
    _settled: Offsets = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, event: RecordedEvent) -> Ticket:
        """Note that `event` is taken up; they come in the order of their partition."""
        ticket = Ticket(event.partition, event.offset + 1)
        with self._lock:
            self._under_way.setdefault(ticket.partition, deque()).append(ticket)
        return ticket

    def leave_out(self, ticket: Ticket, reason: str) -> None:
        """Count an event that is not sent."""
        with self._lock:
            self.left_out[reason] += 1
            ticket.settled = True

    def settle(self, ticket: Ticket, outcome: str, seconds: float, failure: str = "") -> None:
        """Count what became of an event, and how long that took."""
        with self._lock:
            self.outcomes[outcome] += 1
            self.latencies.append(seconds)
            self.failure = failure or self.failure
            ticket.settled = True

    def position(self) -> Offsets:
        """Find up to where all events are settled, in each partition that had some."""
        with self._lock:
            for partition, tickets in self._under_way.items():
                while tickets and tickets[0].settled:
                    self._settled[partition] = tickets.popleft().offset
            return dict(self._settled)

    def report(self, planned: Counted, *, is_done: bool) -> ReplayReport:
        """Sum up."""
        with self._lock:
            ordered = sorted(self.latencies)
            latency = (
                {n: ordered[math.ceil(share * len(ordered)) - 1] for n, share in _SHARES.items()} if ordered else None
            )
            return ReplayReport(
                planned=planned,
                done=is_done,
                outcomes=self.outcomes,
                left_out=self.left_out,
                latency=latency,
                failure=self.failure,
            )
