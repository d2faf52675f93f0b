"""Keep log files from growing without bound, and read their ends."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LIMIT_BYTES = 20 * 1024 * 1024
KEPT = 3
READ_LINES = 400  # enough to hold the traces of one crash of a Spark job
_SHOWN = 20
_WIDTH = 400
_OWN = re.compile(r'File "[^"]*(?:detectors|flows|views)/[^"/]+\.py", line \d+')
_FRAME = re.compile(r'\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more|File "[^"]+", line \d+)')
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)\b")


def rotate(log: Path, *, limit_bytes: int = LIMIT_BYTES, kept: int = KEPT) -> bool:
    """Move the content of a log that has grown beyond `limit_bytes` to `<log>.1`, older ones to `.2` up to `kept`.

    The file is copied and emptied, not renamed, since its writer holds it open (in append mode). Lines that are written
    between the two are lost, and of a log that grew much longer since the last look, all but the end: it takes no more
    of the disk than `kept` + 1 files and what is printed between two looks. Returns whether it did anything; raises
    OSError if the disk is full or the folder cannot be written.
    """
    if not log.exists() or log.stat().st_size <= limit_bytes:
        return False
    for number in range(kept - 1, 0, -1):
        if _older(log, number).exists():
            _older(log, number).replace(_older(log, number + 1))
    with log.open("r+b") as file, _older(log, 1).open("wb") as older:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 2 * limit_bytes))
        older.write(file.read(2 * limit_bytes))
        file.truncate(0)
    return True


def tail(log: Path, lines: int) -> list[str]:
    """The last `lines` lines of a log; none when there is no such file."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except FileNotFoundError:
        return []


def prune(folder: Path, before: float) -> int:
    """Remove the files in `folder` that were last written before the epoch second `before`, and what is empty then.

    Links are not followed. Returns how many files went; one that cannot be removed stays until the next time.
    """
    count = 0
    for parent, _, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in names):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    path.unlink()
                    count += 1
        if Path(parent) != folder:
            with contextlib.suppress(OSError):  # it holds something
                os.rmdir(parent)
    return count


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def excerpt(lines: Iterable[str]) -> list[str]:
    """Choose lines of the end of a log for a mail: the author's own, then the last without libraries' frames."""
    # A trace within one event of the log is one line, with its quotes and its ends of lines escaped.
    unescaped = (line.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\"", '"') for line in lines)
    whole = [part for line in unescaped for part in line.splitlines()]
    own = list(dict.fromkeys(_own(whole)))
    shown = [*own, *([""] if own else []), *list(_folded(whole))[-_SHOWN:]]
    return [line[:_WIDTH] for line in shown]


def _own(lines: Sequence[str]) -> Iterator[str]:
    """Find the places in the author's files, each with its line of code, and the error that ends the trace."""
    is_open = False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if found := _OWN.search(line):
            yield found.group()
            if following.startswith("    "):
                yield f"    {following.strip()}"
            is_open = True
        elif is_open and _ERROR.match(line):
            yield line
            is_open = False


def _folded(lines: Iterable[str]) -> Iterator[str]:
    hidden = 0
    for line in lines:
        if _FRAME.match(line) and not _OWN.search(line):
            hidden += 1
        elif hidden and line.startswith("    "):
            continue  # the code of a hidden frame
        else:
            if hidden:
                yield f"    ({hidden} frames of libraries)"
            hidden = 0
            yield line
    if hidden:
        yield f"    ({hidden} frames of libraries)"
