"""Reads what a system writes: when it was appended, and when a reader that skips uncommitted records could see it."""

from __future__ import annotations

import json
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from bench.load import Cause, micros_of


@dataclass(frozen=True)
class Output:
    """One record of a findings topic.

    Attributes:
        appended: by the broker, milliseconds since the epoch.
        seen: by this reader, milliseconds since the epoch.
    """

    appended: int
    seen: float


class Outputs:
    """Follows a findings topic from its beginning in a background thread, between `with` and its end.

    Attributes:
        first: the first output that names a cause, by detector ("" for peers) and cause.
        best: the highest score by detector, user and window start in microseconds.
        appends: when each record was appended, milliseconds since the epoch.
    """

    def __init__(self, servers: str, topic: str) -> None:
        group = {"group.id": f"bench-{uuid.uuid4()}", "enable.auto.commit": False}
        config = {"bootstrap.servers": servers, "log_level": 0, **group}
        self._consumer = Consumer({**config, "isolation.level": "read_committed"})
        found = self._consumer.list_topics(topic, timeout=10).topics[topic]
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions])
        self.first: dict[tuple[str, Cause], Output] = {}
        self.best: dict[tuple[str, str, int], float] = {}
        self.appends: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outputs")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._take(message, time.time() * 1000)

    def _take(self, message: Message, seen: float) -> None:
        value: dict[str, Any] = json.loads(message.value() or b"{}")
        detector, user = value.get("detector", ""), value["entity"]["user_id"]
        output = Output(message.timestamp()[1], seen)
        self.appends.append(output.appended)
        self.first.setdefault((detector, (user, micros_of(value["event_time_max"]))), output)
        if "score" in value:
            window = (detector, user, micros_of(value["window_start"]))
            self.best[window] = max(self.best.get(window, 0), value["score"])
