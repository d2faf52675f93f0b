"""Login lines as the web shop would write them, for demo, tests and measurements. Same seed, same lines.

What the platform must find in them is computed here, from the lines themselves: nothing checks Spark with Spark.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tocsin.declare.model.durations import EPOCH
from tocsin.ingest.parsing_rules import Reason

WINDOW = timedelta(seconds=10)
FAILED, SUCCEEDED = "login failed", "login succeeded"

_SPREAD = timedelta(seconds=3)


@dataclass(frozen=True, kw_only=True)
class Burst:
    """`n` failed logins of one user that all lie in one 10-second window.

    It begins `at` after the start of the traffic; in the next window when the rest of this one is short.
    """

    user: str
    n: int
    at: timedelta = timedelta(0)


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        at: when it is written, UTC; the event time of a good one.
        reason: class of one of the reasons for which it must go to quarantine; None for a good one.
    """

    at: datetime
    value: bytes
    user: str | None = None
    action: str | None = None
    reason: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A stream of logins.

    Attributes:
        rate: background lines a second; `bursts` come on top of it, and 0 leaves them alone.
        bad_share: part of the background that are bad lines, of every kind in turn.
    """

    start: datetime
    seconds: float | None = None
    rate: float = 20.0
    users: int = 200
    failed_share: float = 0.05
    bad_share: float = 0.0
    json_share: float = 0.2
    bursts: tuple[Burst, ...] = ()
    seed: int = 0

    def lines(self) -> Iterator[Line]:
        """The lines in order of `at`."""
        pending = sorted((moment, burst.user) for burst in self.bursts for moment in burst_times(self.start, burst))
        writer = random.Random(f"bursts {self.seed}")
        for line in self._background():
            while pending and pending[0][0] <= line.at:
                yield _good(writer, *pending.pop(0), FAILED, self.json_share)
            yield line
        for moment, user in pending:
            yield _good(writer, moment, user, FAILED, self.json_share)

    def _background(self) -> Iterator[Line]:
        if self.rate <= 0:
            return
        chance = random.Random(self.seed)
        bad = itertools.cycle(_BAD)
        for number in itertools.count():
            offset = number / self.rate
            if self.seconds is not None and offset >= self.seconds:
                return
            moment = self.start + timedelta(seconds=offset)
            if chance.random() < self.bad_share:
                reason, template = next(bad)
                yield Line(moment, template.replace(b"TIME", _iso(moment).encode()), reason=reason)
                continue
            action = FAILED if chance.random() < self.failed_share else SUCCEEDED
            user = f"user{chance.randrange(self.users) + 1:04}"
            yield _good(chance, moment, user, action, self.json_share)


def wait_for_times(lines: Iterable[Line], stop: threading.Event) -> Iterator[Line]:
    """Yield each line when its time has come, until `stop` is set."""
    for line in lines:
        ahead = (line.at - datetime.now(UTC)).total_seconds()
        if stop.wait(ahead) if ahead > 0 else stop.is_set():
            return
        yield line


def window_start(moment: datetime) -> datetime:
    """Start of the tumbling window that `moment` lies in; windows are counted from 1970 on, as Spark does."""
    return moment - (moment - EPOCH) % WINDOW


def burst_times(start: datetime, burst: Burst) -> list[datetime]:
    """Event times of the events of `burst`: within 3 seconds, and within one window."""
    begin = start + burst.at
    end = window_start(begin) + WINDOW
    if end - begin < _SPREAD:
        begin = end
    step = _SPREAD * 0.9 / max(1, burst.n)
    return [begin + number * step for number in range(burst.n)]


def parse_burst(text: str) -> Burst:
    """Parse `user=mallory,n=120`, with `,at=30` for seconds after the start; raises ValueError with the form."""
    parts = dict(part.strip().partition("=")[::2] for part in text.split(","))
    try:
        burst = Burst(user=parts.pop("user"), n=int(parts.pop("n")), at=timedelta(seconds=float(parts.pop("at", "0"))))
    except (KeyError, ValueError) as error:
        raise ValueError(f"'{text}' is not a burst; write user=mallory,n=120") from error
    if parts or not burst.user or burst.n < 1 or burst.at < timedelta(0):
        raise ValueError(f"'{text}' is not a burst; write user=mallory,n=120")
    return burst


def _good(chance: random.Random, moment: datetime, user: str, action: str, json_share: float) -> Line:
    fields = {
        "user_id": user,
        "timestamp": _iso(moment),
        "ip_address": _address(chance, user, action),
        "action": action,
        "message": "the password is wrong" if action == FAILED else "welcome back",
    }
    if chance.random() < json_share:
        return Line(moment, json.dumps(fields).encode(), user, action)
    return Line(moment, " | ".join(f"{key}: {value}" for key, value in fields.items()).encode(), user, action)


def _address(chance: random.Random, user: str, action: str) -> str:
    """Give each user a network of their own, from which failures and one login in 4,000 do not come."""
    home, elsewhere, host = zlib.crc32(user.encode()) % 200, chance.randrange(4_000), chance.randrange(256 * 254)
    network = f"10.{home}" if action == SUCCEEDED and elsewhere else f"172.{16 + elsewhere % 16}"
    return f"{network}.{host // 254}.{host % 254 + 1}"


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_REST = b" | ip_address: 10.0.0.1 | action: login failed"
_BAD: tuple[tuple[Reason, bytes], ...] = (
    (Reason.NOT_JSON, b'{"user_id": "mallory", "timestamp": "TIME", "ip_addr'),
    (Reason.NOT_UTF8, b"user_id: mall\xf6ry | timestamp: TIME" + _REST),
    (Reason.MISSING, b"user_id:  | timestamp: TIME" + _REST),
    (Reason.WRONG_TYPE, b"user_id: mallory | timestamp: yesterday" + _REST),
    (Reason.TIME_AHEAD, b"user_id: mallory | timestamp: 9999-12-31T23:59:59Z" + _REST),
    (Reason.TIME_TOO_OLD, b"user_id: mallory | timestamp: 1970-01-01T00:00:00Z" + _REST),
    (Reason.NOT_KEY_VALUE, b"Traceback (most recent call last)"),
    (Reason.EMPTY, b"  \t "),
)
