"""Write events to a topic, as JSON objects of their declared columns."""

from __future__ import annotations

import hashlib
import json
import time

from confluent_kafka import KafkaError, Message

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.declare.model.source import RAW_RECORD, Source
from tocsin.declare.settings import Settings
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.ingest.replay.outcomes import REFUSED, Progress, Ticket
from tocsin.ingest.replay.recorded import RecordedEvent
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import missing_topic


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
