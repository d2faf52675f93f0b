"""Sources guessed from JSON as it comes: every field is a column or is named, and the file can be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.source import Source
from tocsin.declare.scaffold import source_text
from tocsin.declare.source_file import read_source
from tocsin.ingest.sampling.sample import name_columns, read_schema

TIME = "2026-01-31T14:05:{n:02}.5Z"


def guessed(folder: Path, records: list[dict[str, Any]]) -> tuple[Source, str]:
    sample, file = folder / "sample", folder / "guessed.toml"
    sample.write_text("".join(json.dumps(record) + "\n" for record in records))
    file.write_text(source_text("guessed", read_schema(sample), "a@example.com"))
    return read_source(file), file.read_text()


def records(make: Any) -> list[dict[str, Any]]:
    return [make(n, TIME.format(n=n)) for n in range(12)]


@pytest.mark.parametrize(
    ("make", "time", "key"),
    [
        (lambda n, at: {"@timestamp": at, "log.level": "x", "host": {"name": f"h{n % 3}"}}, "@timestamp", "host.name"),
        (lambda n, at: {"ts": 1617081354.277591 + n, "id.orig_h": f"10.0.0.{n % 3}"}, "ts", "id.orig_h"),
        (lambda n, at: {"t": {"$date": at}, "s": "IW"[n % 2], "attr": {"user": "ab"[n % 2]}}, "t.$date", "attr.user"),
        (
            lambda n, at: {"Event": {"System": {"TimeCreated": {"#a": {"At": at}}, "Host": "ab"[n % 2]}}},
            "Event.System.TimeCreated.#a.At",
            "Event.System.Host",
        ),
        (lambda n, at: {"time": at, "detail-type": "t", "source": "aws", "user": "ab"[n % 2]}, "time", "user"),
        (
            lambda n, at: {
                "time": at,
                "id": n,
                "detail": {"userIdentity": {"type": "ab"[n % 2], "userName": f"u{n % 3}"}},
            },
            "time",
            "detail.userIdentity.userName",
        ),
        (
            lambda n, at: {"createdAt": 1617081354277 + n, "k": n, "data": {"f": 1.5, "sourceIPAddress": "ab"[n % 2]}},
            "createdAt",
            "data.sourceIPAddress",
        ),
    ],
)
def test_time_and_key_are_found_at_any_path(tmp_path: Path, make: Any, time: str, key: str) -> None:
    made = records(make)
    source, text = guessed(tmp_path, made)
    assert (source.field_of(source.event_time), source.field_of(source.key)) == (time, key)
    fields = {source.field_of(column) for column in source.columns}
    assert [name for name in made[0] if name not in fields and name not in text] == []


def test_names_of_every_kind_make_a_file_that_can_be_read(tmp_path: Path) -> None:
    names = ["at", "who", "Who", "window", "source", "event-time", "event_time", "a b", "a_b", "1st", "x" * 80]
    names += ["é", '"q"', "$", "", " ", "\x7f", "\ud800", "a\nb", "never", "\\", "'", "😀", "_", "-"]
    made = records(lambda n, at: dict.fromkeys(names, 1) | {"at": at, "who": "ab"[n % 2], "never": None})
    source, text = guessed(tmp_path, made)
    read = {source.field_of(column) for column in source.columns}
    assert read == set(names) - {"Who", "$", "", " ", "\x7f", "\ud800", "a\nb", "never"}
    left_out = [line for line in text.splitlines() if line.startswith("# Left out")]
    assert len(left_out) == 8
    assert any("Who (read as who" in line for line in left_out)


def test_fields_within_fields_are_named_for_those_who_want_them() -> None:
    found = name_columns([{"a": {"b": {"c": 1}, "d.e": 2, "f": [1]}}, {"a": "text", "g": {}}])
    assert found.nested == {"a_b_c": [1, None]}
    assert found.records == [{"a": {"b": {"c": 1}, "d.e": 2, "f": [1]}, "g": None}, {"a": "text", "g": {}}]
