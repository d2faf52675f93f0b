"""What became of the events of a replay, and up to where all of them are settled."""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import BaseModel

from tocsin.ingest.replay.recorded import RecordedEvent
from tocsin.platform.kafka.reader import Offsets

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
