"""The lines of a sample, or its rows if it is CSV."""

from __future__ import annotations

import itertools
from pathlib import Path

from tocsin.declare.model.errors import ConfigError
from tocsin.ingest.files.past_rows import FileForm, csv_records, form_of, open_text

_BYTES, _LINES = 1_000_000, 1_000


def read_sample(path: Path) -> tuple[list[str], bool]:
    """Read the first thousand lines of `path` within its first megabyte, and whether it goes on.

    Rows of CSV are JSON objects of texts, as an import makes them.

    Raises:
        ConfigError: it cannot be read, is empty, or is not text in UTF-8.
    """
    if form_of(path) is FileForm.CSV:
        rows = list(itertools.islice(filter(None, csv_records(path)), _LINES + 1))
        if not rows:
            raise ConfigError.one(path, "holds no row but that of column names")
        return _texts(path, rows[:_LINES], "row"), len(rows) > _LINES
    with open_text(path) as file:
        start = file.read(_BYTES)
    if b"\0" in start:  # which is UTF-8, but no text
        raise ConfigError.one(path, "is not text in UTF-8: it holds zero bytes")
    every = start.split(b"\n")[: -1 if len(start) == _BYTES else None]
    lines = [line for line in every if line.strip()]
    if not lines:
        raise ConfigError.one(path, "holds no line" if len(start) < _BYTES else "begins with a line of over a megabyte")
    return _texts(path, lines[:_LINES], "line"), len(start) == _BYTES or len(lines) > _LINES


def _texts(path: Path, lines: list[bytes], what: str) -> list[str]:
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            cause = f"is not text in UTF-8: {what} {number} holds the byte {line[error.start]:02X}"
            raise ConfigError.one(
                path, f"{cause}; if it is Latin-1, write it anew with iconv -f LATIN1 -t UTF-8"
            ) from error
    return texts
