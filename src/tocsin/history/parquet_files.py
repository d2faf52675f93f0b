"""Parquet files of landing and of sealed days: whether one is still what was written down of it."""

from __future__ import annotations

import hashlib

from tocsin.platform.storage.stored_path import StoredPath, open_stored, size_of


def digest(path: StoredPath) -> str:
    """SHA-256 of a file, hexadecimal."""
    with open_stored(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # every such file has `readinto`


def rows_in(path: StoredPath) -> int:
    """Read the number of rows from its footer; OSError if it is gone, or is no Parquet file."""
    from pyarrow import ArrowException, parquet

    try:
        with open_stored(path) as file:
            return int(parquet.read_metadata(file).num_rows)
    except ArrowException as error:
        raise OSError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from error


def fault(path: StoredPath, *, size: int, rows: int, sha256: str | None = None) -> str | None:
    """Say what is wrong with a file written with `size` bytes and `rows` rows; with `sha256` every byte is compared."""
    try:
        found = size_of(path)
        if found != size:
            return f"{path} has {found} bytes, not {size}"
        if (count := rows_in(path)) != rows:
            return f"{path} holds {count} rows, not {rows}"
        changed = sha256 is not None and digest(path) != sha256
    except FileNotFoundError:
        return f"{path} is gone"
    except OSError as error:
        return str(error)
    return f"{path} has changed since it was written" if changed else None
