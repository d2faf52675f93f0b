"""The load of the measurements: login events with a truth of their own, paced or as one backlog.

Users are spread unevenly over the partitions. Event times are unique to the microsecond within a user, so that an
output that carries `event_time_max` names the event that caused it.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, KafkaException, Message, Producer

WINDOW_MICROS = 10_000_000
FAILED = "login failed"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Cause = tuple[str, int]
"""User and event time in microseconds: what an output names as its cause."""


@dataclass(frozen=True)
class Login:
    """One event.

    Attributes:
        user: entity of the detector, and key of the record.
        micros: event time, microseconds since the epoch.
        failed: whether the detector counts it.
        partition: of the raw and of the events topic.
    """

    user: str
    micros: int
    failed: bool
    partition: int

    @property
    def cause(self) -> Cause:
        """What an output names."""
        return self.user, self.micros

    @property
    def window(self) -> int:
        """Start of its window, microseconds since the epoch."""
        return self.micros - self.micros % WINDOW_MICROS

    def as_event(self, topic: str, offset: int) -> bytes:
        """The record on `events.<source>`, as the ingest job writes it; `topic` and `offset` are its origin."""
        moment = iso(self.micros)
        event = {
            "raw_topic": topic,
            "raw_partition": self.partition,
            "raw_offset": offset,
            "event_time": moment,
            "ingested_at": moment,
            "source": "logins",
            "schema_version": 1,
            "user_id": self.user,
            "timestamp": moment,
            "ip_address": "192.0.2.1",
            "action": self.action,
            "message": "bad password" if self.failed else "",
        }
        return json.dumps(event, separators=(",", ":")).encode()

    def as_line(self) -> bytes:
        """The line on `raw.<source>`."""
        fields = {"user_id": self.user, "timestamp": iso(self.micros), "ip_address": "192.0.2.1"}
        fields |= {"action": self.action, "message": "bench"}
        return " | ".join(f"{key}: {value}" for key, value in fields.items()).encode()

    @property
    def action(self) -> str:
        """The column `action`."""
        return FAILED if self.failed else "login succeeded"


def iso(micros: int) -> str:
    """Microseconds since the epoch as events carry them."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def micros_of(text: str) -> int:
    """The inverse of `iso`, for any precision."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


class Sender:
    """Produces records and remembers when the broker appended each. Use from one thread."""

    def __init__(self, servers: str, **config: object) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0, **config})
        self.appended: dict[Cause, int] = {}
        self.failed: list[KafkaError] = []

    def send(self, topic: str, login: Login, value: bytes, remember: bool = True) -> None:
        """Produce one record into its partition; its record time is the event time where the topic allows."""
        moment, delivered = login.micros // 1000, self._remember(login.cause) if remember else None
        while True:
            try:
                self._producer.produce(
                    topic, value, login.user.encode(), login.partition, on_delivery=delivered, timestamp=moment
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything is delivered; KafkaException when something was not."""
        left = self._producer.flush(60)
        if left or self.failed:
            raise KafkaException(f"{left + len(self.failed)} records were not delivered: {self.failed[:1]}")

    def _remember(self, cause: Cause) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(error)
            else:
                self.appended[cause] = message.timestamp()[1]

        return delivered


@dataclass
class Stream:
    """Logins at a steady rate, sent by a background thread between `start` and `stop`.

    Attributes:
        sender: what sends, and knows the append times.
        topic: that is written.
        as_lines: raw lines instead of event records.
        failing: share of the logins that fail.
        sent: the failed logins in the order of sending.
    """

    sender: Sender
    topic: str
    rate: int = 200
    partitions: int = 2
    as_lines: bool = False
    failing: float = 0.9
    sent: list[Login] = field(default_factory=list)

    def start(self) -> None:
        """Begin to send."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait until all is delivered."""
        self._stop.set()
        self._thread.join()
        self.sender.flush()

    def _run(self) -> None:
        logins = steady(self.partitions, self.failing)
        began, number = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self.rate)
            while number < due:
                login = next(logins)
                value = login.as_line() if self.as_lines else login.as_event("bench", number)
                self.sender.send(self.topic, login, value)
                if login.failed:
                    self.sent.append(login)
                number += 1
            time.sleep(0.001)


def steady(partitions: int, failing: float) -> Iterator[Login]:
    """Logins that happen now, by 8 users of uneven weight, of which this share fails."""
    chance = random.Random(1)
    users, weights = [f"user{n}" for n in range(8)], [2.0**-n for n in range(8)]
    last = 0
    while True:
        last = max(last + 1, time.time_ns() // 1000)
        number = chance.choices(range(8), weights)[0]
        yield Login(users[number], last, chance.random() < failing, number % partitions)


@dataclass(frozen=True)
class Backlog:
    """Logins that lie in the past, in the order of their times.

    `count` logins over `seconds` until now, of many users with uneven weights; then, in each partition, a burst by a
    user of its own, whose findings tell that the partition is drained. The weights are Pareto's: with `alpha` 1.1 two
    logins of three are by two users, with 0.2 one of five, and a window of 10,000 has thousands of users.
    """

    count: int
    seconds: float
    partitions: int = 2
    users: int = 20_000
    end_burst: int = 60
    alpha: float = 1.1

    def __iter__(self) -> Iterator[Login]:
        chance, step = random.Random(2), int(self.seconds * 1e6 / self.count)
        first = time.time_ns() // 1000 - int(self.seconds * 1e6)
        first -= first % WINDOW_MICROS
        for number in range(self.count):
            user = int(chance.paretovariate(self.alpha)) % self.users
            yield Login(f"user{user}", first + number * step, number % 3 != 0, user % self.partitions)
        last = first + self.count * step
        last += -last % WINDOW_MICROS
        for partition in range(self.partitions):
            for number in range(self.end_burst):
                yield Login(end_user(partition), last + number, True, partition)


def end_user(partition: int) -> str:
    """The user whose burst ends a backlog."""
    return f"end{partition}"


def counts(logins: Iterator[Login] | list[Login] | Backlog) -> Counter[tuple[str, int]]:
    """The truth: failed logins by user and window start."""
    return Counter((login.user, login.window) for login in logins if login.failed)
