"""Choose lines of a job's log for a mail: the author's own first, then the end without frames of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

READ_LINES = 400
"""Enough to hold the traces of one crash of a Spark job."""
_SHOWN = 20
_WIDTH = 400
_OWN = re.compile(r'File "[^"]*(?:detectors|flows|views)/[^"/]+\.py", line \d+')
_FRAME = re.compile(r'\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more|File "[^"]+", line \d+)')
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)\b")


def excerpt(lines: Iterable[str]) -> list[str]:
    """Shorten the end of a log: about thirty lines, of a width for a mail."""
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
