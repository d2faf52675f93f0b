"""Everything that can be wrong with a line, through `tocsin send` and the real jobs, up to the mail."""

import base64
import email.policy
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, Message
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.faults.findings import Told
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import iso, line, now_micros
from tests.rig.observed import DETECT, INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.model.names import INDEXER, NOTIFIER

INJECTION = 'eve" onerror="alert(0)\r\nBcc: victim@example.com\r\n\r\n<script>alert(1)</script>'


def _json(**fields: object) -> bytes:
    moment = iso(now_micros())
    base = {"user_id": "ann", "timestamp": moment, "ip_address": "192.0.2.1", "action": "login failed", "message": "m"}
    return json.dumps({**base, **fields}).encode()


def _at(moment: str) -> bytes:
    return _json(timestamp=moment)


BAD = {
    b"user_id: \xff\xfe | timestamp: 2026-01-01T00:00:00Z | ip_address: 1 | action: login failed": {"not_utf8"},
    b"user_id: " + b"x" * 1_000_000: {"too_long"},
    _json()[:-20]: {"not_json"},
    b"what is this": {"not_key_value"},
    line("ann", now_micros()).replace(b" | action: login failed", b""): {"missing:action"},
    _json(timestamp="yesterday"): {"wrong_type:timestamp"},
    _json(timestamp=[1, 2]): {"wrong_type:timestamp"},
    _at("9999-01-01T00:00:00Z"): {"time_ahead"},
    _at("1970-01-01T00:00:00Z"): {"time_too_old"},
    _json(user_id=None): {"missing:user_id"},
    line("", now_micros()): {"missing:user_id"},
    b"   ": {"empty"},
}


@pytest.fixture
def one(broker: Broker, tmp_path: Path) -> Iterator[Installation]:
    with Installation(tmp_path, broker) as installation:
        installation.make_topics()
        installation.start(INGEST, DETECT, INDEXER, NOTIFIER)
        installation.await_ready(INGEST, DETECT, INDEXER, NOTIFIER)
        yield installation


def _send(installation: Installation, folder: Path, lines: list[bytes]) -> str:
    """Send `lines` as a user does, with `tocsin send`; returns what it says."""
    file = folder / "lines.txt"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    command = [sys.executable, "-m", "tocsin.cli", "send", str(file)]
    done = subprocess.run(command, env=installation.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class _Page(HTMLParser):
    """The tags and attributes of a page, as a browser understands it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def _as_a_reader_sees(mail: Message) -> EmailMessage:
    opened = message_from_bytes(mail.as_bytes(), policy=email.policy.default)
    assert isinstance(opened, EmailMessage)
    return opened


def _part(mail: EmailMessage, kind: str) -> str:
    part = mail.get_body(preferencelist=(kind,))
    assert part is not None
    return str(part.get_content())


def test_what_cannot_be_used_waits_in_quarantine_and_what_can_is_found(one: Installation, tmp_path: Path) -> None:
    names = one.settings.names
    assert "0 lines" in _send(one, tmp_path, [])

    unknown_field = _json(user_id="ann", shoe_size=43)
    evil = [_json(user_id=INJECTION) for _ in range(101)]
    _send(one, tmp_path, [*BAD, unknown_field, *evil])
    await_that(lambda: len(one.values(names.quarantine(SOURCE))) >= len(BAD), 60, lambda: one.log(INGEST)[-3000:])
    await_that(lambda: len(one.sink.mails) > 0, 120, lambda: Told.of(one))

    waiting = {record["payload_sha256"]: record for record in one.values(names.quarantine(SOURCE))}
    assert waiting.keys() == {hashlib.sha256(bad).hexdigest() for bad in BAD}
    for bad, reasons in BAD.items():
        record = waiting[hashlib.sha256(bad).hexdigest()]
        assert set(record["reasons"]) == reasons, bad[:80]
        assert record["payload_length"] == len(bad)
        assert base64.b64decode(record["payload"]) == bad[:262_144]

    events = [event for event in one.values(names.events(SOURCE)) if not event.get("tick")]
    assert sorted({event["user_id"] for event in events}) == ["ann", INJECTION]
    assert sum(event["user_id"] == "ann" for event in events) == 1, "a field that is not declared is no fault"

    mail = _as_a_reader_sees(one.sink.mails[0])
    assert mail["Bcc"] is None
    assert mail["To"] == "security@example.com"
    assert "eve" in mail["Subject"]
    page = _Page()
    page.feed(_part(mail, "html"))
    assert "script" not in page.tags
    assert not {name for name in page.attributes if name.startswith("on")}
    assert "\r" not in mail["Subject"] and "\n" not in mail["Subject"]
    assert len(one.sink.mails) == 1
