"""Login lines with a truth of their own: steady noise by many users, and bursts whose counts are known beforehand."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle

from confluent_kafka import KafkaError, Message, Producer

# So low that the noise too becomes findings: an event that is lost, or counted twice, then shows in a score.
EMAIL, URGENT = 5, 100
WINDOW_MICROS = 10_000_000
SPREAD_MICROS = 1_000_000
BURSTS = (6, 100, 5, 101, 60, 120, 30, 160)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Window = tuple[str, int]
"""User, and start of the window in microseconds since the epoch."""


def now_micros() -> int:
    """The time, microseconds since the epoch."""
    return time.time_ns() // 1000


def iso(micros: int) -> str:
    """The moment as lines carry it."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


def line(user: str, micros: int, failed: bool = True) -> bytes:
    """One login as the shop writes it."""
    action = "login failed" if failed else "login succeeded"
    return (
        f"user_id: {user} | timestamp: {iso(micros)} | ip_address: 192.0.2.7 | action: {action} | message: m".encode()
    )


def level(count: float) -> str | None:
    """The level that a count must have reached."""
    return "urgent" if count > URGENT else "email" if count > EMAIL else None


def rung_below(count: int) -> int:
    """The highest value that must have been told of a count above the highest limit."""
    rung = URGENT + 1
    while (above := max(rung + 1, rung + rung // 10)) <= count:
        rung = above
    return rung


@dataclass
class Truth:
    """What was sent.

    Attributes:
        failed: failed logins by window.
        bad: lines that nobody can use, by their text.
        sent: all records.
    """

    failed: Counter[Window] = field(default_factory=Counter)
    bad: set[bytes] = field(default_factory=set)
    sent: int = 0

    def findings(self) -> dict[Window, int]:
        """Windows that must become findings, with their counts."""
        return {window: count for window, count in self.failed.items() if level(count)}


class Load:
    """Sends until stopped, from a thread of its own.

    Each second brings `noise` lines, by users of uneven weight, up to 3 seconds out of order, and every 1.5 seconds
    a burst by a new user, in one window or, when an edge has just passed, straddling it. Every eighth line is for
    partition 1, the others for partition 0; for 12 of each 40 seconds partition 1 gets nothing at all.
    """

    BURST_EVERY = 1.5

    def __init__(self, kafka: dict[str, object], topic: str, seed: int = 1, noise: int = 80) -> None:
        self.truth, self._noise_per_second = Truth(), noise
        # A line that is sent again because the broker was killed is one line.
        self._producer = Producer({**kafka, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
        self._topic, self._chance = topic, random.Random(seed)
        self._sizes, self._stop = cycle(BURSTS), threading.Event()
        self._undelivered: list[KafkaError] = []
        self._bursts = 0
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and wait until all is delivered; a second call does nothing."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(60)
        assert not left and not self._undelivered, f"{left} lines are not delivered: {self._undelivered[:1]}"

    def burst(self, user: str, count: int) -> None:
        """`count` failed logins of `user` at once, all in the present window."""
        now = now_micros()
        self._spread(user, count, max(now - SPREAD_MICROS, now - now % WINDOW_MICROS), now)

    def straddling_burst(self, user: str, count: int) -> None:
        """The same just after the edge of a window: all but 20 lie before it."""
        now = now_micros()
        edge = now - now % WINDOW_MICROS
        self._spread(user, count - 20, edge - SPREAD_MICROS, edge - 1)
        self._spread(user, 20, edge, now)

    def _spread(self, user: str, count: int, first: int, last: int) -> None:
        for number in range(count):
            self._send(user, first + (last - first) * number // count, True)

    def _run(self) -> None:
        began = time.monotonic()
        noise = 0
        while not self._stop.wait(0.02):
            elapsed = time.monotonic() - began
            while noise < elapsed * self._noise_per_second:
                self._noise()
                noise += 1
            if elapsed > (self._bursts + 1) * self.BURST_EVERY:
                self._bursts += 1
                self._next_burst()

    def _noise(self) -> None:
        user = f"user{min(39, int(self._chance.expovariate(0.15)))}"
        late = int(self._chance.random() ** 3 * 3_000_000)
        self._send(user, now_micros() - late, self._chance.random() < 0.2)
        if self._chance.random() < 0.01:
            self._send_bad()

    def _next_burst(self) -> None:
        count, user = next(self._sizes), f"burst{self._bursts}"
        since_edge = now_micros() % WINDOW_MICROS
        if since_edge < SPREAD_MICROS:
            self.straddling_burst(user, count)
        else:
            self.burst(user, count)

    def _send(self, user: str, micros: int, failed: bool) -> None:
        if failed:
            self.truth.failed[user, micros - micros % WINDOW_MICROS] += 1
        self._produce(line(user, micros, failed))

    def _send_bad(self) -> None:
        bad = f"number {self.truth.sent} is no login".encode()
        self.truth.bad.add(bad)
        self._produce(bad)

    def _produce(self, value: bytes) -> None:
        idle = time.time() % 40 < 12
        partition = 1 if self.truth.sent % 8 == 0 and not idle else 0
        self.truth.sent += 1
        self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._undelivered.append(error)
