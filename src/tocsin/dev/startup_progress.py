"""What people see while the stack starts and runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Line:
    """How one part of the stack is.

    Attributes:
        name: the server or job.
        ready: whether it works.
        text: what it does, or what it waits for.
        failing: whether it needs somebody to look at it.
    """

    name: str
    ready: bool
    text: str
    failing: bool = False


class Progress(Protocol):
    """Shows lines; told all of them at every look."""

    def show(self, lines: Sequence[Line]) -> None:
        """Show how all parts are now."""

    def say(self, text: str) -> None:
        """Show one sentence, once."""

    def settle(self) -> None:
        """From now on show changes only: all is ready, or all is about to stop."""


def progress(stream: TextIO | None = None) -> Progress:
    """A table that changes in place on a terminal, plain lines elsewhere."""
    console = Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False)
    return Redrawn(console) if console.is_terminal else Plain(console)


class Plain:
    """One line for each change, with the seconds since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()
        self._shown: dict[str, Line] = {}

    def go_on_from(self, lines: Sequence[Line]) -> None:
        """Take `lines` as shown already."""
        self._shown = {line.name: line for line in lines}

    def show(self, lines: Sequence[Line]) -> None:
        """See `Progress.show`."""
        for line in lines:
            if self._shown.get(line.name) != line:
                self.say(f"{line.name}: {_printable(line.text)}")
        self.go_on_from(lines)

    def say(self, text: str) -> None:
        """See `Progress.say`."""
        seconds = time.monotonic() - self._began
        for part in text.splitlines():
            self._console.print(f"{seconds:6.1f} s  {part}", soft_wrap=True)
        self._console.file.flush()

    def settle(self) -> None:
        """See `Progress.settle`."""


class Redrawn:
    """A table until all is settled, then one line for each change."""

    def __init__(self, console: Console) -> None:
        self._plain = Plain(console)
        self._live: Live | None = Live(console=console, auto_refresh=False)
        self._live.start()
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """See `Progress.show`."""
        if self._live is None:
            self._plain.show(lines)
            return
        self._lines = lines
        self._live.update(_table(lines), refresh=True)

    def say(self, text: str) -> None:
        """See `Progress.say`."""
        self._plain.say(text)

    def settle(self) -> None:
        """See `Progress.settle`."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._plain.go_on_from(self._lines)


def _table(lines: Sequence[Line]) -> Table:
    drawn = Table(box=None, show_header=False, pad_edge=False)
    for line in lines:
        sign, style = ("!", "bold red") if line.failing else ("+", "green") if line.ready else (".", "yellow")
        drawn.add_row(Text(sign, style), Text(line.name), Text(_printable(line.text), "" if line.ready else style))
    return drawn


def _printable(text: str) -> str:
    """Reasons may quote log lines; nothing in them may act on the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
