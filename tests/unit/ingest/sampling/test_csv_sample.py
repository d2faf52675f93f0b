"""Guessing a source from rows of CSV."""

import gzip
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.scaffold import source_text
from tocsin.declare.source_file import read_source
from tocsin.ingest.sampling.sample import read_schema


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_rows_of_csv_are_a_source_of_json(tmp_path: Path, mark: str) -> None:
    rows = [["at", "line", "rides", "postcode", "wait", "note"]]
    rows += [[f"2026-11-20 10:0{n}:00", "ab"[n % 2], str(n), f"0123{n}", "18ms", "" if n else "x"] for n in range(4)]
    path = tmp_path / "rides.csv"
    path.write_text("".join(f"{mark.join(row)}\n" for row in rows))
    schema = read_schema(path)
    assert (schema.format, schema.key, schema.event_time, schema.event_time_format) == ("json", "line", "at", "iso8601")
    assert schema.columns == {
        "at": "timestamp", "line": "string", "rides": "int", "postcode": "string", "wait": "string"
    }  # fmt: skip
    assert schema.optional == {"note": "string"}
    (tmp_path / "rides.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_schema(tmp_path / "rides.csv.gz") == schema
    source = tmp_path / "rides.toml"
    source.write_text(source_text("rides", schema, "a@b.example"))
    assert read_source(source).key == "line"


def test_a_number_that_is_measured_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "rides.csv"
    path.write_text("series,at,value\ntaxi,2014-07-01 00:00:00,10844\ntaxi,2014-07-01 00:30:00,8127\n")
    assert read_schema(path).key == "series"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"t,id\n2026-11-20 10:00:00,caf\xe9\n", "row 1 holds the byte E9; if it is Latin-1"),
        (b"t,id\n", "holds no row but that of column names"),
        (b"t,id\n2026-11-20 10:00:00,a,b\n", "more cells than column names in many rows"),
        (b"2026-11-20 10:00:00,a\n", "has no row of column names"),
        (gzip.compress(b"t,id\n", mtime=0), "is compressed with gzip"),
        ("t,id\n".encode("utf-16"), "is UTF-16"),
    ],
)
def test_why_a_csv_file_cannot_be_read_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        read_schema(path)
