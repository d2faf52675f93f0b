"""Show people how the stack starts and runs."""

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

from tocsin.declare.model.sizes import printable


@dataclass(frozen=True)
class Part:
    """A server or job of the stack, as people see it; `failing` tells that somebody must look at it."""

    name: str
    ready: bool
    text: str
    failing: bool = False


class StartupProgress(Protocol):
    """Shows how the parts of the stack are."""

    def show(self, parts: Sequence[Part]) -> None:
        """Show how all parts are now."""

    def say(self, text: str) -> None:
        """Show one sentence, once."""

    def settle(self) -> None:
        """From now on show changes only: all is ready, or all is about to stop."""


def progress(stream: TextIO | None = None) -> StartupProgress:
    """A table that changes in place on a terminal, plain lines elsewhere."""
    console = Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False)
    return Redrawn(console) if console.is_terminal else Plain(console)


class Plain:
    """One line for each change, with the seconds since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()
        self._shown: dict[str, Part] = {}

    def go_on_from(self, parts: Sequence[Part]) -> None:
        """Take `parts` as shown already."""
        self._shown = {part.name: part for part in parts}

    def show(self, parts: Sequence[Part]) -> None:
        """See `StartupProgress.show`."""
        for part in parts:
            if self._shown.get(part.name) != part:
                self.say(f"{part.name}: {printable(part.text)}")
        self.go_on_from(parts)

    def say(self, text: str) -> None:
        """See `StartupProgress.say`."""
        seconds = time.monotonic() - self._began
        for line in text.splitlines():
            self._console.print(f"{seconds:6.1f} s  {line}", soft_wrap=True)
        self._console.file.flush()

    def settle(self) -> None:
        """See `StartupProgress.settle`."""


class Redrawn:
    """A table until all is settled, then one line for each change."""

    def __init__(self, console: Console) -> None:
        self._plain = Plain(console)
        self._live: Live | None = Live(console=console, auto_refresh=False)
        self._live.start()
        self._parts: Sequence[Part] = ()

    def show(self, parts: Sequence[Part]) -> None:
        """See `StartupProgress.show`."""
        if self._live is None:
            self._plain.show(parts)
            return
        self._parts = parts
        self._live.update(_table(parts), refresh=True)

    def say(self, text: str) -> None:
        """See `StartupProgress.say`."""
        self._plain.say(text)

    def settle(self) -> None:
        """See `StartupProgress.settle`."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._plain.go_on_from(self._parts)


def _table(parts: Sequence[Part]) -> Table:
    drawn = Table(box=None, show_header=False, pad_edge=False)
    for part in parts:
        sign, style = ("!", "bold red") if part.failing else ("+", "green") if part.ready else (".", "yellow")
        drawn.add_row(Text(sign, style), Text(part.name), Text(printable(part.text), "" if part.ready else style))
    return drawn
