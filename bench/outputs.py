"""Reads what a system writes: when it was appended, and when a reader that skips uncommitted records could see it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from bench.load import Cause, micros_of
from bench.tail import Tail


@dataclass(frozen=True)
class Output:
    """One record of a findings topic.

    Attributes:
        appended: by the broker, milliseconds since the epoch.
        seen: by this reader, milliseconds since the epoch.
    """

    appended: int
    seen: float


class Outputs(Tail):
    """Follows a findings topic; skips what is not committed, as the readers of an exactly-once system do.

    Attributes:
        first: the first output that names a cause, by detector ("" for peers) and cause.
        best: the highest score by detector, user and window start in microseconds.
        appends: when each record was appended, milliseconds since the epoch.
    """

    def __init__(self, servers: str, topic: str, since: float = 0.0) -> None:
        """Leave out what was appended before `since`, milliseconds since the epoch."""
        self._since = since
        self.first: dict[tuple[str, Cause], Output] = {}
        self.best: dict[tuple[str, str, int], float] = {}
        self.appends: list[int] = []
        super().__init__({"bootstrap.servers": servers, "isolation.level": "read_committed"}, topic)

    def take(self, message: Message) -> None:
        """Note what the record says, and when it was seen."""
        seen = time.time() * 1000
        output = Output(message.timestamp()[1], seen)
        if output.appended < self._since:
            return
        value: dict[str, Any] = json.loads(message.value() or b"{}")
        detector, user = value.get("detector", ""), value["entity"]["user_id"]
        self.appends.append(output.appended)
        self.first.setdefault((detector, (user, micros_of(value["event_time_max"]))), output)
        if "score" in value:
            window = (detector, user, micros_of(value["window_start"]))
            self.best[window] = max(self.best.get(window, 0), value["score"])
