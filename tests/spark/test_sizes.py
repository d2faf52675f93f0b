"""Raw records of the greatest sizes: what becomes of them fits into the topic that gets it."""

import base64
import hashlib
import json

from tests.spark.raw_records import LOGINS, Raw, Read, source
from tocsin.declare.model.sizes import KEPT_KEY_BYTES, QUARANTINE_BYTES, VALUE_BYTES
from tocsin.declare.model.source import Format


def test_the_quarantine_record_of_the_longest_raw_record_fits(read: Read) -> None:
    value, key = b"\xff" * 300_000, b"\xfe" * 1_400_000
    headers = [[("\x01" * 1_000, b"")] * 1_600, [("a", b"\xff" * 1_600_000)], [("a", b"\x01")] * 100_000]
    long_key, *long_headers = read(LOGINS, Raw(value, key=key), *(Raw(value, headers=one) for one in headers))
    for out in (long_key, *long_headers):
        assert len(json.dumps(out.value)) < QUARANTINE_BYTES // 3
    kept = base64.b64decode(long_key.value["raw_key"], validate=True)
    assert kept == key[:KEPT_KEY_BYTES]
    assert long_key.value["raw_key_length"] == len(key)
    assert long_key.value["raw_key_sha256"] == hashlib.sha256(key).hexdigest()
    assert not any("headers" in out.value for out in long_headers)
    assert [out.value["headers_count"] for out in long_headers] == [len(one) for one in headers]


def test_an_event_that_its_topic_would_not_take_goes_to_quarantine(read: Read) -> None:
    """A pattern may capture one text many times over."""
    columns = {f"c{number}": "string" for number in range(9)}
    again = "".join(f"(?=(?<{name}>.*))" for name in columns)
    fields = {"formats": (Format.REGEX,), "patterns": (rf"(?<visitor>\S+) (?<at>\S+) {again}.*",), "columns": columns}
    fields["columns"] = {"visitor": "string", "at": "timestamp"} | columns
    made = source(**fields, optional=frozenset(columns), max_bytes=VALUE_BYTES)
    short, long = (b"v 2026-01-01T11:59:59Z " + b"x" * length for length in (10_000, 1_000_000))
    outs = read(made, short, long)
    assert [out.topic for out in outs] == ["events.visits", "quarantine.visits"]
    assert outs[1].value["reasons"] == ["event_too_long"]
