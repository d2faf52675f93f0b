"""Write for the verbs: tables and plain lines for people, JSON for programs.

Nothing that comes from a log line, a file or a record reaches the terminal as it is: control characters (which move the
cursor, set the title or hide text) are shown as escapes, and no text is ever read as markup.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tocsin.declare.model.sizes import printable
from tocsin.platform.progress import is_heard, listening

if TYPE_CHECKING:
    from pydantic import BaseModel

_Shape = TypeVar("_Shape", bound="BaseModel")
_Found = TypeVar("_Found", bound="BaseModel | Sequence[BaseModel]")

_PIPE_WIDTH = 100_000
_PLAIN_SECONDS = 10.0
_STYLES = {"urgent": "bold red", "email": "yellow", "problem": "bold red", "warning": "yellow", "ok": "green"}


def console(*, error: bool = False) -> Console:
    """The terminal behind standard output (or standard error); NO_COLOR is respected, and a pipe is never wrapped."""
    made = Console(stderr=error, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def line(text: str, style: str = "") -> None:
    """One line for people on standard output; `text` may hold line ends, and is otherwise made printable."""
    for part in text.split("\n"):
        console().print(Text(printable(part), style=style), soft_wrap=True)


def note(text: str, style: str = "") -> None:
    """One line for people on standard error: progress, hints, and errors."""
    for part in text.split("\n"):
        console(error=True).print(Text(printable(part), style=style), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table without frame, or the sentence `empty` when there is no row; None is an empty cell."""
    drawn = drawn_table(columns, rows)
    if drawn.row_count:
        console().print(drawn)
    else:
        line(empty)


def drawn_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Draw a table without frame; None is an empty cell."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(
            *(Text("" if cell is None else printable(cell), style=_STYLES.get(str(cell), "")) for cell in row)
        )
    return drawn


def write(found: _Found, show: Callable[[_Found], None], *, json: bool) -> None:
    """Write what was found as JSON, or as `show` writes it for people."""
    if json:
        as_json(found)
    else:
        show(found)


def write_list(
    found: Sequence[_Shape],
    columns: Sequence[str],
    row: Callable[[_Shape], Sequence[object]],
    *,
    json: bool,
    empty: str,
) -> None:
    """Write what was found as JSON, or as a table with a `row` for each."""
    if json:
        as_json(found)
    else:
        table(columns, map(row, found), empty=empty)


@contextmanager
def bar(what: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """A progress bar on standard error while the block runs, if that is a terminal; call what it gives to advance.

    `total` is None when the end is not known.
    """
    screen = console(error=True)
    if not screen.is_terminal:
        yield lambda step: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda step: progress.advance(task, step)


@contextmanager
def progress() -> Iterator[None]:
    """Show on standard error what `report_progress` reports in the block.

    On a terminal it is a line that changes, elsewhere a plain line at most every ten seconds. In another such block,
    which shows it, there is nothing to do.
    """
    if is_heard():
        yield
        return
    screen = console(error=True)
    if screen.is_terminal:
        with screen.status("") as status, listening(lambda *what: status.update(Text(_progress_text(*what)))):
            yield
        return
    since = time.monotonic()

    def write(what: str, done: int, total: int) -> None:
        nonlocal since
        if time.monotonic() - since >= _PLAIN_SECONDS:
            since = time.monotonic()
            note(_progress_text(what, done, total))

    with listening(write):
        yield


def _progress_text(what: str, done: int, total: int) -> str:
    return printable(f"{what}: {done:,} of {total:,}" if total else f"{what}: {done:,}")


def as_json(value: BaseModel | Sequence[BaseModel]) -> None:
    """A shape, or a list of them, as JSON on standard output, in ASCII, so that no text in it can act on a terminal."""
    plain = [v.model_dump(mode="json") for v in value] if isinstance(value, Sequence) else value.model_dump(mode="json")
    sys.stdout.write(json.dumps(plain, indent=2) + "\n")


def utc(moment: datetime | None) -> str:
    """`moment` in UTC to the second, as 2026-01-31 14:05:09Z; empty for None."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def as_text(value: object) -> str:
    """A sample event or an added fact: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def counted(count: int, what: str) -> str:
    """A count and what is counted: 1 source, 2 sources."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
