"""Write records to Kafka, and count what became of them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import GIVE_RIGHTS, UNAUTHORIZED, reaching

PROMPT: dict[str, Any] = {"linger.ms": 0, "enable.idempotence": False}
"""The configuration for single records that are sent at once, and of which the next one says more than a lost one."""


class RecordWriter:
    """Writes records, each once. Use it in a `with` statement, which waits at the end until all are delivered.

    Attributes:
        sent: records handed over, those that were refused included.
    """

    def __init__(
        self, settings: Settings, longest: int, *, timeout_seconds: float = 30.0, config: dict[str, Any] | None = None
    ) -> None:
        """Write records of up to `longest` bytes, headers included; Kafka may be away.

        Kafka must take a record, and store it, in `timeout_seconds`. `config` is what the producer should do
        differently, in librdkafka's words.
        """
        self.sent = self.delivered = self.refused = self.failed = 0
        self.error: str | None = None
        self._kafka, self._timeout, self._reported = settings.kafka, timeout_seconds, 0
        own = {"message.max.bytes": longest, "message.timeout.ms": int(timeout_seconds * 1000)} | (config or {})
        self._producer = Producer(settings.kafka.for_librdkafka() | {"enable.idempotence": True} | own)

    def has_topic(self, topic: str) -> bool:
        """Return whether `topic` is there; errors as `topics`."""
        return topic in self.topics()

    def topics(self) -> set[str]:
        """Name all topics that are there. TransientError if Kafka cannot be reached."""
        with reaching(self._kafka, "the list of topics"):
            return {*self._producer.list_topics(timeout=10.0).topics}

    def write(self, topic: str, value: str | bytes | None, key: str | bytes | None = None, **more: Any) -> bool:
        """Hand over a record; waits while too many are under way. False if it is too long, and Kafka never takes it.

        A `value` of None removes what a compacted topic holds for the key. `more` is of `Producer.produce`: partition,
        headers; with an `on_delivery` the record is not counted here. Raises a TransientError if Kafka has not taken
        anything for `timeout_seconds`.
        """
        taken = self._hand_over(topic, value, key, **{"on_delivery": self._count} | more)
        self.poll()
        return taken

    def poll(self, timeout_seconds: float = 0.0) -> None:
        """Hear what became of records, at once or within `timeout_seconds`."""
        self._producer.poll(timeout_seconds)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until every record is delivered, as long as Kafka may take for one unless `timeout_seconds` are given.

        Raises a TransientError if records were lost since the last flush. `failed` says how many were ever; sending
        them again helps.
        """
        left = self._producer.flush(self._timeout if timeout_seconds is None else timeout_seconds)
        self.failed += left  # not in one line: `failed` would be read before what flush counts
        if self.failed > self._reported:
            self._reported = self.failed
            lost = f"{self.failed} of {self.sent} records did not reach Kafka at {self._kafka.bootstrap_servers}"
            raise TransientError(f"{lost}: {self.error or 'it does not answer'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()
        else:
            self._producer.flush(2.0)

    def _hand_over(self, topic: str, value: str | bytes | None, key: str | bytes | None, **more: Any) -> bool:
        """Do what `write` does, but hear of no record meanwhile."""
        self.sent += 1
        deadline = 0.0
        while True:
            try:
                self._producer.produce(topic, value=value, key=key, **more)
                return True
            except BufferError:
                deadline = deadline or time.monotonic() + self._timeout
                if time.monotonic() > deadline:
                    raise TransientError(f"Kafka accepts no records for {topic}") from None
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise TransientError(f"cannot write to {topic}: {error.args[0].str()}") from error
                self._refuse(error.args[0])
                return False

    def _refuse(self, error: KafkaError) -> None:
        self.refused += 1
        self.error = self.error or error.str()

    def _count(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            mend = f"; {GIVE_RIGHTS}" if error.code() in UNAUTHORIZED else ""
            self.error = self.error or f"{error.str()}{mend}"
