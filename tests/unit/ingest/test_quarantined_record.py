"""Quarantine records as Python reads them, and how they are chosen."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.ingest import quarantine
from tocsin.ingest.parsing_rules import BATCH_HEADER
from tocsin.ingest.quarantine import Selection, changed_rules, count_quarantined
from tocsin.ingest.quarantined_record import QuarantinedRecord, read_record
from tocsin.platform.kafka.reader import TopicReader

PROJECT = Path(__file__).parents[3]
LOGINS = read_source(PROJECT / "sources" / "logins.toml")
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Message:
    """What is used of a Kafka message."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 2, int(AT.timestamp() * 1000)

    def partition(self) -> int:
        return 1

    def offset(self) -> int:
        return 42

    def key(self) -> bytes | None:
        return b"ann"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("a", b"1")]


@pytest.mark.parametrize(
    ("header", "identity"),
    [
        (b"0123456789abcdef0123456789abcdef/12", ("batch:0123456789abcdef0123456789abcdef", 0, 12)),
        (b"0123456789ABCDEF0123456789abcdef/12", ("raw.logins", 0, 7)),
        (b"\xff", ("raw.logins", 0, 7)),
        (None, ("raw.logins", 0, 7)),
    ],
)
def test_the_identity_is_that_of_the_batch_if_any(header: bytes | None, identity: tuple[str, int, int]) -> None:
    value = None if header is None else base64.b64encode(header).decode()
    assert record(headers=[{"key": "other", "value": None}, {"key": BATCH_HEADER, "value": value}]).identity == identity


def record(**fields: Any) -> QuarantinedRecord:
    written: dict[str, Any] = {
        "payload": base64.b64encode(b"caf\xe9").decode(),
        "payload_length": 4,
        "payload_sha256": "00",
        "reasons": ["not_utf8"],
        "origin": {"topic": "raw.logins", "partition": 0, "offset": 7, "timestamp": "2026-01-01T11:59:59.000000Z"},
        "source": "logins",
        "schema_version": 1,
        "rules_version": "r",
        "rules": {"format": "1", "parser": "1"},
        "replays": 0,
    }
    found = read_record("logins", Message(json.dumps(written | fields).encode()))  # type: ignore[arg-type]  # a stand-in
    assert found is not None
    return found


def test_a_record() -> None:
    one = record(raw_key=base64.b64encode(b"\xff").decode(), headers=[{"key": "a", "value": "AAE="}, {"key": "b"}])
    assert (one.id, one.quarantined_at, one.payload, one.text) == ("logins/1/42", AT, b"caf\xe9", "caf\\xe9")
    assert (str(one.origin), one.raw_key, one.truncated) == ("raw.logins/0/7", b"\xff", False)
    assert [(header.key, header.value) for header in one.headers] == [("a", b"\x00\x01"), ("b", None)]


def test_only_the_beginning_of_a_long_record_is_kept() -> None:
    assert record(payload_length=5).truncated


def test_a_record_that_had_no_value() -> None:
    one = record(payload=None, payload_length=None, payload_sha256=None, reasons=["no_value"])
    assert (one.payload, one.text, one.truncated) == (None, "", False)


@pytest.mark.parametrize("value", [b"", None, b"[]", b"{}", b"\xff", b"7"])
def test_what_is_no_quarantine_record_is_left_out(value: bytes | None) -> None:
    assert read_record("logins", Message(value)) is None  # type: ignore[arg-type]  # a stand-in


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(reason="missing"), True),
        (Selection(reason="missing:user_id"), True),
        (Selection(reason="missing:action"), False),
        (Selection(reason="not_utf8"), False),
        (Selection(since=AT), True),
        (Selection(since=AT + timedelta(seconds=1)), False),
        (Selection(reason="missing", since=AT + timedelta(seconds=1)), False),
    ],
)
def test_a_selection(selection: Selection, taken: bool) -> None:
    assert selection.takes(record(reasons=["missing:user_id", "time_ahead"])) is taken


def test_which_rules_have_changed() -> None:
    assert changed_rules(record(), {"format": "1", "parser": "2", "limits": "1"}) == {"parser", "limits"}


def test_reasons_are_counted_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(reasons=["empty"]), record(reasons=["missing:a", "time_ahead"]), record(reasons=["time_ahead"])]
    monkeypatch.setattr(quarantine, "all_quarantined", lambda *_: records)
    found = count_quarantined(Settings(), [LOGINS, LOGINS], Selection(limit=1))
    assert (found.total, len(found.newest)) == (6, 1)
    assert found.reasons == [("time_ahead", 4), ("empty", 2), ("missing:a", 2)]


WHOLE = b"caf\xe9 au lait"
CUT = {
    "payload_length": len(WHOLE),
    "payload_sha256": hashlib.sha256(WHOLE).hexdigest(),
    "raw_key": base64.b64encode(b"a").decode(),
    "raw_key_length": 3,
    "raw_key_sha256": hashlib.sha256(b"ann").hexdigest(),
}


@pytest.mark.parametrize(
    ("found", "changes", "replayed"),
    [
        (WHOLE, {}, [(WHOLE, b"ann")]),
        (b"caf\xe9 au laid", {}, []),
        (WHOLE, {"raw_key_sha256": hashlib.sha256(b"amy").hexdigest()}, []),
        (None, {}, []),
    ],
    ids=["the record", "another value", "another key", "no value"],
)
def test_a_long_record_is_replayed_only_from_what_is_still_the_record_itself(
    found: bytes | None, changes: dict[str, str], replayed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raw topic that was made anew has other records at the same offsets."""
    producer = Mock(flush=Mock(return_value=0))
    monkeypatch.setattr(TopicReader, "record", lambda *_: Message(found))
    monkeypatch.setattr("tocsin.platform.kafka.record_writer.Producer", lambda _: producer)
    one = record(**CUT | changes)
    result = quarantine.replay(Settings(project=PROJECT), LOGINS, [one])
    sent = [call.kwargs for call in producer.produce.call_args_list]
    assert [(each["value"], each["key"]) for each in sent] == replayed
    assert result.replayed == [one.id] * len(replayed)
    assert list(result.skipped) == ([] if replayed else [one.id])
