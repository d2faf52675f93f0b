"""A record of `quarantine.<source>` as Python reads and writes it.

An ingest writes it in Spark (`tocsin.ingest.spark.envelope`), except for a record that ends its query.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import datetime
from typing import Annotated

from confluent_kafka import Message
from pydantic import Base64Bytes, BaseModel, Field

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.sizes import KEPT_BYTES, KEPT_KEY_BYTES, QUARANTINE_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.ingest.parsing_rules import BATCH, BATCH_HEADER, BATCH_PLACE, Reason, rule_parts, rules_version
from tocsin.platform.kafka.reader import TopicReader, appended_at
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.quality.suites.suite_catalog import read_row_rules


class RawPlace(BaseModel, frozen=True):
    """The place at which the record was first appended; `timestamp` is its append time, UTC."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Header(BaseModel, frozen=True):
    """A Kafka header of the raw record."""

    key: str
    value: Base64Bytes | None = None


class QuarantinedRecord(BaseModel, frozen=True, extra="ignore"):
    """One record that could not be used.

    Attributes:
        id: `<source>/<partition>/<offset>` of its quarantine record.
        payload: the first 256 KiB of the original value; None if that was null.
        reasons: all of them, as in `tocsin.ingest.parsing_rules.Reason`, with the column where there is one.
        error: of a record that was set aside: why the query of the ingest ended; empty else.
        raw_key: the first 64 KiB of the key of the raw record; None if it had none.
        headers: of the raw record; empty, too, where they are longer than 128 KiB as JSON.
        headers_count, headers_length, headers_sha256: of all headers, their bytes as JSON and the SHA-256 of that.
    """

    id: str
    quarantined_at: datetime
    payload: Base64Bytes | None = None
    payload_length: int | None = None
    payload_sha256: str | None = None
    reasons: tuple[str, ...]
    error: str = ""
    origin: RawPlace
    source: str
    schema_version: int
    rules_version: str
    rules: Annotated[dict[str, str], Field(default_factory=dict)]
    replays: int = 0
    raw_key: Base64Bytes | None = None
    raw_key_length: int | None = None
    raw_key_sha256: str | None = None
    headers: tuple[Header, ...] = ()
    headers_count: int | None = None
    headers_length: int | None = None
    headers_sha256: str | None = None

    @property
    def identity(self) -> tuple[str, int, int]:
        """`raw_topic`, `raw_partition` and `raw_offset` of the event that it is after a replay."""
        value = next((header.value for header in self.headers if header.key == BATCH_HEADER), None)
        batch = re.match(BATCH_PLACE, (value or b"").decode(errors="replace"))
        if batch is None:
            return self.origin.topic, self.origin.partition, self.origin.offset
        return f"{BATCH}{batch[1]}", 0, int(batch[2])

    @property
    def truncated(self) -> bool:
        """`payload` is only the beginning."""
        return self.payload is not None and len(self.payload) < (self.payload_length or 0)

    @property
    def cut(self) -> tuple[str, ...]:
        """The parts of the raw record of which it does not keep the whole: `payload`, `key`, `headers`."""
        cut = {
            "payload": self.truncated,
            "key": len(self.raw_key or b"") < (self.raw_key_length or 0),
            "headers": len(self.headers) < (self.headers_count or 0),
        }
        return tuple(part for part, is_cut in cut.items() if is_cut)

    @property
    def text(self) -> str:
        """The payload to show to people, bytes that are not UTF-8 in hexadecimal; empty if it was null."""
        return (self.payload or b"").decode("utf-8", "backslashreplace")


def read_record(source: str, message: Message) -> QuarantinedRecord | None:
    """Read the quarantined record in `message`; None when it holds something else."""
    place = {"id": f"{source}/{message.partition()}/{message.offset()}", "quarantined_at": appended_at(message)}
    try:
        return QuarantinedRecord.model_validate(json.loads(message.value() or b"") | place)
    except (ValueError, TypeError):  # pydantic's ValidationError is a ValueError
        return None


def write_record(settings: Settings, source: Source, partition: int, offset: int, error: str) -> None:
    """Write the raw record of `source` at this place to quarantine, without its headers. `error` says why.

    Nothing where the raw topic does not have it any more. A repetition makes a second record of the same origin.

    Raises:
        ConfigError: what is expected of the source's events has faults; a retry does not help.
        TransientError: Kafka cannot be reached; a retry helps.
    """
    with TopicReader(settings, "reader", settings.names.raw(source.name)) as reader:
        message = reader.record(partition, offset)
    if message is None:
        return
    written = _fields(message, source, rule_parts(source, read_row_rules(settings.project, source)), error)
    topic, key = settings.names.quarantine(source.name), f"{message.topic()}/{partition}/{offset}"
    with RecordWriter(settings, QUARANTINE_BYTES) as writer:
        if not writer.write(topic, json.dumps(written).encode(), key):
            raise TransientError(f"cannot write to {topic}: {writer.error}")


def _fields(message: Message, source: Source, parts: dict[str, str], error: str) -> dict[str, object]:
    headers = message.headers() or []
    place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
    return {
        **_part("payload", message.value(), KEPT_BYTES),
        **_part("raw_key", message.key(), KEPT_KEY_BYTES),
        "reasons": [Reason.SET_ASIDE],
        "error": error,
        "origin": place | {"timestamp": appended_at(message).strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
        "source": source.name,
        "schema_version": source.schema_version,
        "rules_version": rules_version(parts),
        "rules": parts,
        "headers_count": len(headers),
    }


def _part(name: str, value: bytes | None, limit: int) -> dict[str, object]:
    if value is None:
        return {}
    beginning = base64.b64encode(value[:limit]).decode()
    return {name: beginning, f"{name}_length": len(value), f"{name}_sha256": hashlib.sha256(value).hexdigest()}
