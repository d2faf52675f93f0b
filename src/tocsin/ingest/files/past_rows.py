"""Files of past events as rows: each line, CSV row or Parquet row is one record, numbered from 1.

Lines are records as they are, without the mark of UTF-8 before the first. Rows of CSV and Parquet become JSON objects,
an empty or null cell being no value, so that the same rules read them as read everything else.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from tocsin.declare.model.errors import ConfigError

_AT_ONCE = 50_000
_LONGEST_CELL = 16 * 1_048_576
_VALUE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b|-?\d+([.,]\d+)?$|.*\d:\d\d:\d\d")
"""So begins what is the value of a cell, and no column's name."""
_NO_ROW = re.compile(r"#(?:[ ]|[^,;\t|]*$)|\s*$|sep=.\s*$")
"""A line ahead of the column names: a comment, blank, or what Excel writes there."""
_BARE = re.compile(r'(?<![^\t])(?!"(?:[^"\t]|"")*"(?:[\t\r\n]|\Z))"[^\t\r\n]*')
"""A cell that begins with a quotation mark and is not in quotes: between tabs it may stand for itself."""
_PACKED = {
    b"\x1f\x8b": "is compressed with gzip: call it .gz",
    b"\x28\xb5\x2f\xfd": "is compressed with Zstandard: unpack it with zstd -d",
    b"BZh": "is compressed with bzip2: unpack it with bunzip2",
    b"\xfd7zXZ": "is compressed with xz: unpack it with unxz",
    b"PK\x03\x04": "is a ZIP archive or a spreadsheet: unpack it, or save it as CSV",
    b"PAR1": "is Parquet: call it .parquet",
    b"\xff\xfe": "is UTF-16: write it as UTF-8, as with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16: write it as UTF-8, as with iconv -f UTF-16 -t UTF-8",
}
"""How a file begins that holds no lines of text as it is, and what to do."""


class FileForm(StrEnum):
    """The form in which a file holds its rows."""

    LINES = "lines"
    """One record in each line, in a form that the source takes: JSON, key-value lines, or lines of its pattern."""
    CSV = "csv"
    """A row of column names, then one record in each; cells end with the one of `,`, `;`, tab, `|` it has most of."""
    PARQUET = "parquet"


def form_of(path: Path) -> FileForm:
    """The form that the name of a file says, `.gz` behind it or not; lines if it says nothing."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return {".csv": FileForm.CSV, ".tsv": FileForm.CSV, ".parquet": FileForm.PARQUET}.get(
        suffix.lower(), FileForm.LINES
    )


def list_files(paths: Iterable[Path]) -> Iterator[Path]:
    """List the `paths` files, and the files of given folders by name, without hidden files and deeper folders.

    ConfigError if a folder holds no file.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        if not found:
            raise ConfigError.one(path, "holds no file")
        yield from found


def has_times(path: Path, column: str) -> bool:
    """Return whether a Parquet file holds `column` as a time, which needs no format; ConfigError for another file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError.one(path, f"is not a Parquet file: {str(error).splitlines()[0]}") from error
    return column in schema.names and pa.types.is_timestamp(schema.field(column).type)


def stage(
    path: Path, form: FileForm, longest: int, target: Path, tell: Callable[[int], object] = lambda _: None
) -> int:
    """Write the rows of `path` to the Parquet file `target`: `row` (bigint) and `value` (binary); returns how many.

    A line longer than `longest` bytes is cut behind the first byte too many, so that it is refused as too long. `tell`
    is called now and then with the number of rows so far.

    Raises:
        ConfigError: the file cannot be read, is not gzip although its name says so or the reverse, is UTF-16, or is no
            CSV or Parquet.
        OSError: `target` cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("row", pa.int64()), ("value", pa.binary())])
    count = 0
    with parquet.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer:
        for chunk in _chunks(read_records(path, form, longest)):
            rows = range(count + 1, count + len(chunk) + 1)
            writer.write_batch(pa.record_batch([pa.array(rows, pa.int64()), pa.array(chunk, pa.binary())], schema))
            count += len(chunk)
            tell(count)
    return count


def read_records(path: Path, form: FileForm, longest: int) -> Iterator[bytes]:
    """Read the rows of `path` as records. Lines are cut as by `stage`, and ConfigError is raised as there."""
    match form:
        case FileForm.LINES:
            with open_text(path) as file:
                yield from read_lines(file, longest)
        case FileForm.CSV:
            yield from csv_records(path)
        case FileForm.PARQUET:
            yield from _parquet(path)


def _chunks(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for value in values:
        chunk.append(value)
        size += len(value)
        if len(chunk) >= _AT_ONCE or size >= _LONGEST_CELL:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def open_text(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file of text, unpacked if it ends in .gz; ConfigError if it cannot be read, or holds no text as it is."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            start = file.peek(8)
            zeros = "is not text: it begins with zero bytes, as UTF-16 may" if b"\0" in start[:4] else ""
            if what := next((what for mark, what in _PACKED.items() if start.startswith(mark)), zeros):
                raise ConfigError.one(path, what)
            yield file  # type: ignore[misc]  # a GzipFile reads like any other
    except (OSError, EOFError) as error:
        raise ConfigError.one(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_lines(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """Read the lines of `file`, without the mark of UTF-8 at its beginning; long ones are cut as by `stage`."""
    mark = codecs.BOM_UTF8  # some editors of Windows write it
    while line := file.readline(longest + 2 + len(mark)):
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(_LONGEST_CELL)):
            pass
        yield line.removeprefix(mark)[: longest + 2].removesuffix(b"\n")
        mark = b""


def csv_records(path: Path) -> Iterator[bytes]:
    """Read the rows of a CSV file as JSON objects of texts.

    A blank row, and one of too many cells or with text behind a closing quotation mark, stays as it is.

    ConfigError if the file cannot be read, is no CSV, has no row of column names, or does not close a quotation mark.
    """
    # Not with pyarrow.csv, which takes rows with too few or too many cells out of their order: here a short row lacks
    # values, and a long one goes to quarantine, each under its number.
    csv.field_size_limit(_LONGEST_CELL)
    with open_text(path) as file:
        end = "\n" if b"\n" in file.peek(8) else ""  # else a carriage return within a cell would end its row
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline=end)
        ahead, first = next(((n, line) for n, line in enumerate(text) if not _NO_ROW.match(line)), (0, ""))
        bare = re.sub('"[^"]*"', "", first)
        delimiter = "\t" if "\t" in bare else max(",;|", key=bare.count)
        spaced = bare.count(delimiter) == bare.count(f"{delimiter} ")
        row: list[str] = []
        lines = _noted(itertools.chain([first], text), row, bare.count("\t"))
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=spaced, strict=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            if any(_VALUE.match(name) for name in names):
                raise ConfigError.one(path, "has no row of column names: its first row holds values", line=1)
            if not names or len(set(names)) != len(names):
                raise ConfigError.one(path, "needs a first row of column names, each once")
            yield from _objects(reader, names, row)
        except csv.Error as error:
            what = f"is not CSV: {error}, in the row that begins here; is a quotation mark not closed?"
            raise ConfigError.one(path, what, line=ahead + reader.line_num - len(row) + 1) from error


def _noted(lines: Iterable[str], row: list[str], tabs: int) -> Iterator[str]:
    """Add each of `lines` to `row`, and pass it on; cells between `tabs` that begin with a bare mark get quotes."""
    for line in lines:
        row.append(line)
        is_whole = len(row) == 1 and 0 < tabs == line.count("\t")
        yield _BARE.sub(lambda cell: '"{}"'.format(cell[0].replace('"', '""')), line) if is_whole else line


def _objects(reader: Iterator[list[str]], names: list[str], row: list[str]) -> Iterator[bytes]:
    """Yield the rows of `reader`, of which `row` holds the lines that the current one is made of."""
    while True:
        row.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if not re.search("expected after|new-line character", str(error)):
                raise
            # Text behind a closing quotation mark, as in "a \"b\"", or a carriage return: another value would be read.
            yield "".join(row).rstrip("\r\n").encode("utf-8", "surrogateescape")
        else:
            if cells is None:
                return
            yield _object(names, cells)


def _object(names: list[str], cells: list[str]) -> bytes:
    if not cells:
        return b""
    if len(cells) > len(names):  # which cell belongs to which column is not known: no object, so it is refused
        return ",".join(cells).encode("utf-8", "surrogateescape")
    filled = {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}
    return json.dumps(filled, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _parquet(path: Path) -> Iterator[bytes]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ConfigError.one(path, f"has two columns '{twice}': give one another name")
            for batch in file.iter_batches(_AT_ONCE):
                for row in batch.to_pylist():
                    filled = {name: value for name, value in row.items() if value is not None}
                    yield _json(filled).encode("utf-8", "surrogateescape")
    except (OSError, ArrowException) as error:
        raise ConfigError.one(path, f"is not a Parquet file: {str(error).splitlines()[0]}") from error
    except (OverflowError, ValueError) as error:
        raise ConfigError.one(path, f"holds a time outside of the years 1 to 9999: {error}") from error


def _json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # NaN or infinity, which is no JSON: as text only its column is unusable
        return json.dumps(_as_texts(row), ensure_ascii=False, default=_plain)


def _as_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_texts(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_texts(inner) for inner in value]
    return value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)


def _plain(value: Any) -> Any:
    """Write what JSON has no form for: times as ISO 8601, durations in seconds, decimals and bytes as text.

    Times that name a zone are written in UTC.
    """
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is None else value.astimezone(UTC)
        return zoned.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value) if isinstance(value, Decimal | date | time) else repr(value)
