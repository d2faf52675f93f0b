"""Follows a topic while something else goes on: for measurements, and for the tests that kill things."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition


class Tail(ABC):
    """Reads a topic from its beginning in a background thread, between `with` and its end."""

    def __init__(self, kafka: Mapping[str, Any], topic: str) -> None:
        """Nothing is read yet; `kafka` says how to reach it, and what else the consumer should do."""
        own = {"group.id": f"tail-{uuid.uuid4()}", "enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 50}
        self._consumer = Consumer({**own, **kafka})
        found = self._consumer.list_topics(topic, timeout=10).topics[topic]
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tail of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    @abstractmethod
    def take(self, message: Message) -> None:
        """Do something with the next record, at once, in the background thread."""

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.take(message)
