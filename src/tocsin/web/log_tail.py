"""The end of a log, whatever is in it and however long it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tocsin.declare.model.sizes import printable
from tocsin.web.page_shapes import LogTail

LINES = 200
_BYTES = 128 * 1024
_LONGEST = 2000


def tail_of(log: Path) -> LogTail:
    """The last lines of `log`, made safe to show; no lines when it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BYTES))
            read = file.read(_BYTES)
            written_at = os.fstat(file.fileno()).st_mtime
    except OSError:
        return LogTail(now=time.time(), path=printable(log), lines=[], written_at=None, cut=False)
    lines = read.decode(errors="replace").split("\n")
    if size > _BYTES:
        lines = lines[1:]  # its beginning was not read
    if lines and not lines[-1]:
        lines.pop()
    shown = [_short(line.rstrip("\r")) for line in lines[-LINES:]]
    cut = size > _BYTES or len(lines) > LINES
    return LogTail(now=time.time(), path=printable(log), lines=shown, written_at=written_at, cut=cut)


def _short(line: str) -> str:
    text = printable(line.replace("\t", "    "))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text) - _LONGEST:,} more characters)"
