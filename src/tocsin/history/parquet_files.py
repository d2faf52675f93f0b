"""Parquet files of landing and of sealed days: whether one is still what was written down of it."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rows_in(path: Path) -> int:
    """Read the number of rows from its footer.

    Raises:
        OSError: it is gone, or is no Parquet file.
    """
    from pyarrow import ArrowException, parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except ArrowException as error:
        raise OSError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from error


def fault(path: Path, *, size: int, rows: int, sha256: str | None = None) -> str | None:
    """Find what is wrong with a file that was written with `size` bytes and `rows` rows; None when nothing is.

    With `sha256` every byte of it is compared.
    """
    try:
        found = path.stat().st_size
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
