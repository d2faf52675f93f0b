"""A record of `quarantine.<source>` as Python sees it; the ingest job writes it, see `tocsin.ingest.spark.envelope`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

from confluent_kafka import Message
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field


class Origin(BaseModel):
    """Where the record was first appended; `timestamp` is its append time, UTC."""

    model_config = ConfigDict(frozen=True)

    topic: str
    partition: int
    offset: int
    timestamp: datetime

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Header(BaseModel):
    """A Kafka header of the raw record."""

    model_config = ConfigDict(frozen=True)

    key: str
    value: Base64Bytes | None = None


class QuarantinedRecord(BaseModel):
    """One record that could not be used.

    Attributes:
        id: `<source>/<partition>/<offset>` of its quarantine record.
        quarantined_at: append time of its quarantine record, UTC.
        payload: the first 256 KiB of the original value; None if that was null.
        payload_length: of the whole original value in bytes; None if it was null.
        payload_sha256: of the whole original value, hexadecimal; None if it was null.
        reasons: all of them, as in `tocsin.ingest.parsing_rules.Reason`, with the column where there is one.
        error: of a record that was set aside: why the query of the ingest ended; empty else.
        origin: where it came from.
        source, schema_version: what it was read as.
        rules_version, rules: of the rules that judged it, see `rule_parts`.
        replays: how often it has been replayed.
        raw_key: the first 64 KiB of the key of the raw record; None if it had none.
        raw_key_length, raw_key_sha256: of the whole key; None if there was none.
        headers: of the raw record; empty, too, where they are longer than 128 KiB as JSON.
        headers_count, headers_length, headers_sha256: of all headers, their bytes as JSON and the SHA-256 of that.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    quarantined_at: datetime
    payload: Base64Bytes | None = None
    payload_length: int | None = None
    payload_sha256: str | None = None
    reasons: tuple[str, ...]
    error: str = ""
    origin: Origin
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
    def truncated(self) -> bool:
        """Whether `payload` is only the beginning."""
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
    """The quarantined record in `message`; None when it holds something else."""
    moment = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    place = {"id": f"{source}/{message.partition()}/{message.offset()}", "quarantined_at": moment}
    try:
        return QuarantinedRecord.model_validate(json.loads(message.value() or b"") | place)
    except (ValueError, TypeError):  # pydantic's ValidationError is a ValueError
        return None
