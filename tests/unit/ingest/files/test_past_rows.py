import bz2
import codecs
import gzip
import json
import lzma
import math
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tocsin.declare.model.errors import ConfigError
from tocsin.ingest.files.past_rows import FileForm, form_of, has_times, stage


def staged(path: Path, form: FileForm | None = None, longest: int = 1000) -> list[bytes]:
    target = path.with_name("staged.parquet")
    count = stage(path, form or form_of(path), longest, target)
    rows: list[dict[str, Any]] = parquet.read_table(target).to_pylist()
    assert [row["row"] for row in rows] == list(range(1, count + 1))
    return [row["value"] for row in rows]


def test_the_name_says_the_form() -> None:
    names = {
        "a.jsonl": "lines",
        "a.log.gz": "lines",
        "a": "lines",
        "a.CSV": "csv",
        "a.csv.gz": "csv",
        "a.tsv": "csv",
        "a.parquet": "parquet",
    }
    assert {name: form_of(Path(name)).value for name in names} == names


def test_lines_are_records_as_they_are_also_in_gzip(tmp_path: Path) -> None:
    text = b'{"a":1}\n\nuser_id: x | action: y\r\n\xff\nlast'
    lines = [b'{"a":1}', b"", b"user_id: x | action: y\r", b"\xff", b"last"]
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(codecs.BOM_UTF8 + text))
    assert staged(tmp_path / "a.jsonl") == lines
    assert staged(tmp_path / "b.log.gz") == lines


def test_a_line_that_is_too_long_is_cut_behind_the_first_byte_too_many(tmp_path: Path) -> None:
    sizes = [50, 10, 11, 12, 13, 9, 9_000]
    (tmp_path / "a.log").write_bytes(b"\n".join(b"x" * size for size in sizes))
    assert [len(value) for value in staged(tmp_path / "a.log", longest=10)] == [12, 10, 11, 12, 12, 9, 12]
    (tmp_path / "a.log").write_bytes(codecs.BOM_UTF8 + b"x" * 13 + b"\n" + b"y" * 10)
    assert [len(value) for value in staged(tmp_path / "a.log", longest=10)] == [12, 10]


def test_rows_of_csv_become_objects_and_an_empty_cell_no_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfuser_id,note\r\nu,"a, ""b""\nc"\r\nv,\r\nw\r\nx,y,z\r\n')
    values = staged(tmp_path / "a.csv")
    assert [json.loads(value) for value in values[:3]] == [
        {"user_id": "u", "note": 'a, "b"\nc'},
        {"user_id": "v"},
        {"user_id": "w"},
    ]
    assert values[3] == b"x,y,z", "which cell is which is not known, so it must not look like a record"
    (tmp_path / "b.csv").write_text("a,a\n1,2\n")
    with pytest.raises(ConfigError, match="column names, each once"):
        staged(tmp_path / "b.csv")


def test_rows_of_parquet_become_objects_with_times_in_utc(tmp_path: Path) -> None:
    at = datetime(2026, 11, 19, 12, microsecond=5, tzinfo=UTC)
    columns = {"user_id": ["u", None], "at": [at, datetime(1, 1, 1, tzinfo=UTC)], "n": [1, 2]}
    columns |= {"local": [datetime(2026, 11, 19, 12), None]}
    columns |= {"of_day": [time(9, 5), None], "took": [timedelta(seconds=5.5), None], "x": [[math.nan, 1.5], None]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    first, second = (json.loads(value) for value in staged(tmp_path / "a.parquet"))
    shown = {"local": "2026-11-19T12:00:00.000000", "of_day": "09:05:00", "took": 5.5, "x": ["NaN", 1.5]}
    assert first == {"user_id": "u", "at": "2026-11-19T12:00:00.000005Z", "n": 1} | shown
    assert second == {"at": "0001-01-01T00:00:00.000000Z", "n": 2}
    parquet.write_table(pa.table({"at": pa.array([2**60], pa.timestamp("us"))}), tmp_path / "far.parquet")
    with pytest.raises(ConfigError, match="holds a time outside of the years 1 to 9999"):
        staged(tmp_path / "far.parquet")
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "twice.parquet")
    with pytest.raises(ConfigError, match="has two columns 'a'"):
        staged(tmp_path / "twice.parquet")
    assert has_times(tmp_path / "a.parquet", "at")
    assert not has_times(tmp_path / "a.parquet", "n")


@pytest.mark.parametrize(("name", "content"), [("a.jsonl.gz", b"plain"), ("a.parquet", b"plain"), ("a.csv", b"")])
def test_a_file_that_is_not_what_its_name_says_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        staged(tmp_path / name)
    with pytest.raises(ConfigError, match="missing"):
        staged(tmp_path / "missing.jsonl")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"x" * 10_000)[:20])
    with pytest.raises(ConfigError, match="cut"):
        staged(cut)


def test_quotation_marks_that_mean_something_else_change_no_value(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    odd = ['a,"x \\"y\\""', '"b" c,1', '"d,1\ne,"f"', "g\rh,1"]
    path.write_text("\n".join(["# of 2026", "id,n", *odd, '5" disk,""', ""]), newline="")
    *kept, last = staged(path)
    assert ([row.decode() for row in kept], json.loads(last)) == (odd, {"id": '5" disk'})
    path.write_text('# of 2026\nid,n\na,1\n"b,1\nc,1\n')
    with pytest.raises(ConfigError, match=r":4: is not CSV: unexpected end of data, in the row that begins here"):
        staged(path)


def test_a_bare_quotation_mark_between_tabs_stands_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    cells = ['"a\t5" x', '"b" c\t"say ""hi"""', '"\t""', '"x\ty"\t,', '"m\nn"\t.', 'z\t"open']
    path.write_text("\n".join(["id, a\tb", *cells]))
    found = [('"a', '5" x'), ('"b" c', 'say "hi"'), ('"', None), ("x\ty", ","), ("m\nn", "."), ("z", '"open')]
    rows = [json.loads(row) for row in staged(path)]
    assert [(row["id, a"], row.get("b")) for row in rows] == found


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_row_of_names_tells_what_ends_a_cell(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"t{mark} id{mark}v\n2026-11-20 10:00:00{mark}a{mark}5\n")
    assert [json.loads(row) for row in staged(path)] == [{"t": "2026-11-20 10:00:00", "id": "a", "v": "5"}]


def test_comments_ahead_of_the_column_names_and_blanks_behind_delimiters_are_no_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('# export; of, 2026\n\nsep=;\nt; "a, b, c"; id\n\n2026-11-20 10:00:00; "x; y"; 1,5\n')
    blank, row = staged(path)
    assert blank == b""
    assert json.loads(row) == {"t": "2026-11-20 10:00:00", "a, b, c": "x; y", "id": "1,5"}


@pytest.mark.parametrize(
    "first",
    ["2026-11-20 10:00:00,a,1.5", "20/11/2026 10:00,a", "a;1,5", "2026-11-20 10:00:00.5 EDT,,x", "Nov 20 10:00:00,a"],
)
def test_values_are_no_column_names(tmp_path: Path, first: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{first}\n")
    with pytest.raises(ConfigError, match=":1: has no row of column names"):
        staged(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "compressed with gzip: call it .gz"),
        (bz2.compress(b"a,b\n"), "bzip2"),
        (lzma.compress(b"a,b\n"), "xz"),
        (b"\x28\xb5\x2f\xfd\x04", "Zstandard"),
        (b"PK\x03\x04\x14\x00", "ZIP"),
        (b"PAR1\x15\x04", "call it .parquet"),
        ("t,id\n".encode("utf-16"), "UTF-16: write it as UTF-8"),
        ("t,id\n".encode("utf-16-le"), "as UTF-16 may"),
    ],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_file_that_holds_no_text_as_it_is_says_why(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        staged(path)
