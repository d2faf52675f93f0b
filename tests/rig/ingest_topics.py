"""The topics of `logins` around the ingest job, from outside."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Message, Producer

from tests.rig.installation import Installation
from tests.rig.waiting import await_that
from tocsin.dev.generator import Line
from tocsin.ingest.parsing_rules import ORIGIN_HEADER
from tocsin.ingest.producer import LineProducer

Identity = tuple[int, int]
WAIT = 90.0
COMMENT = b"# "
"""Begins lines that a source may ignore."""


class Topics:
    """The topics of `logins`, from outside."""

    def __init__(self, installation: Installation) -> None:
        self._installation, names = installation, installation.settings.names
        self.raw, self.events_topic, self.quarantine = (
            names.raw("logins"),
            names.events("logins"),
            names.quarantine("logins"),
        )

    def send(self, lines: Iterable[Line]) -> list[Line]:
        sent = list(lines)
        source = self._installation.catalog.source("logins")
        with LineProducer(self._installation.settings, source) as producer:
            for line in sent:
                producer.send(line.value)
        assert (producer.delivered, producer.failed) == (len(sent), 0)
        return sent

    def send_to(self, partition: int, lines: Iterable[Line]) -> list[Line]:
        sent, failed = list(lines), []
        producer = Producer(self._installation.settings.kafka.for_librdkafka())
        for line in sent:
            producer.produce(
                self.raw,
                value=line.value,
                partition=partition,
                on_delivery=lambda e, _: failed.append(e) if e else None,
            )
        assert (producer.flush(30), failed) == (0, [])
        return sent

    def events(self) -> list[dict[str, Any]]:
        """Every event record, duplicates included, without ticks."""
        return [value for value in self._installation.values(self.events_topic) if "tick" not in value]

    def ticks(self) -> Counter[int]:
        """How many ticks each events partition holds."""
        messages = self._installation.read(self.events_topic)
        return Counter(m.partition() or 0 for m in messages if (m.value() or b"").startswith(b'{"tick"'))

    def processed(self) -> set[Identity]:
        """The raw places that have come out, as event or in quarantine."""
        places = {place(event) for event in self.events()}
        origins = [value["origin"] for value in self._installation.values(self.quarantine)]
        return places | {(origin["partition"], origin["offset"]) for origin in origins}

    def appended(self) -> set[Identity]:
        """All raw places of what is not ignored; what was replayed keeps its first one."""
        return self._raw_places(ignored=False)

    def ignored(self) -> set[Identity]:
        """All raw places of lines that a source may ignore."""
        return self._raw_places(ignored=True)

    def _raw_places(self, *, ignored: bool) -> set[Identity]:
        messages = [m for m in self._installation.read(self.raw) if (m.value() or b"").startswith(COMMENT) == ignored]
        return {(m.partition() or 0, m.offset() or 0) for m in messages if ORIGIN_HEADER not in dict(m.headers() or [])}

    def await_all(self) -> None:
        """Wait until every raw record has come out."""
        wanted = self.appended()
        await_that(
            lambda: wanted <= self.processed(), WAIT, lambda: f"missing: {sorted(wanted - self.processed())[:20]}"
        )

    def assert_ticks_are_true(self) -> None:
        assert_ticks_are_true(self._installation.read(self.events_topic))


def assert_ticks_are_true(messages: Iterable[Message]) -> None:
    """After a tick of time T, no event that was appended before T comes for the first time."""
    latest: dict[int, str] = {}
    seen: set[tuple[str, int, int]] = set()
    for message in sorted(messages, key=_in_order):
        value, partition = json.loads(message.value() or b"{}"), message.partition() or 0
        if "tick" in value:
            assert value["event_time"] > latest.get(partition, ""), "ticks go back"
            latest[partition] = value["event_time"]
        elif (identity := (value["raw_topic"], *place(value))) not in seen:
            seen.add(identity)
            assert value["ingested_at"] >= latest.get(partition, ""), f"a tick passed {value}"


def place(event: dict[str, Any]) -> Identity:
    return event["raw_partition"], event["raw_offset"]


def _in_order(message: Message) -> tuple[int, int]:
    return message.partition() or 0, message.offset() or 0
