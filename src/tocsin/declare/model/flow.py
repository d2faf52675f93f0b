r"""The contract of a flow: one file, `flows/<name>.py`, that makes events of some sources into events of another.

::

    @flow(source="lines", to="words", owner="search@example.com", stage="live")
    def flow(events: DataFrame) -> DataFrame:
        words = F.split(F.lower("line"), r"\W+")
        return events.select("*", F.posexplode(words).alias("position", "word")).where("word != ''")

What `flow` receives: the declared columns of the source, and those of the envelope
(`tocsin.declare.model.source.ENVELOPE`); of several sources `Sources`, without windows.
What it returns: the same envelope, the declared columns of the source `to`, and `position` if it makes several rows of
one event. It keeps no state. An event time that it changes is that of the new event.

The declaration is read with `ast`; nothing imports a flow to learn about it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from tocsin.declare.model.detector import Stage

_Flow = TypeVar("_Flow", bound=Callable[..., Any])

POSITION = "position"
"""The column that tells the rows apart that a flow makes of one event: a number from 0 on."""


@dataclass(frozen=True, kw_only=True)
class FlowSpec:
    """The declaration in a flow's file, as the platform reads it.

    Attributes:
        to: name of the source whose events it writes; its format is `events`.
    """

    name: str
    path: Path
    sources: tuple[str, ...]
    to: str
    owner: str
    stage: Stage
    isolation: bool = False
    latency: str = ""
    environment: str = ""
    tables: tuple[str, ...] = ()
    title: str
    doc: str
    version: str
    code: str = ""


class Sources(Protocol):
    """What `detect` and `view` receive as their first argument if they declare `source=[...]` with several names."""

    def __getitem__(self, name: str) -> Any:
        """Return the events of the source `name`, each once, as a function of that source alone receives them.

        They are joined by a condition that bounds the time between them, or put together by `unionByName`. They have no
        `window`; see `with_window`.

        Raises:
            ConfigError: the source is not declared in `source=[...]`; a retry does not help.
        """

    def with_window(self, rows: Any) -> Any:
        """Add the column `window` to `rows`, by their `event_time`: once they are joined, or put together.

        Raises:
            ConfigError: they have no `event_time`, or `window=None` is declared; a retry does not help.
        """


class Tables(Protocol):
    """What `detect`, `flow` and `view` receive as their second argument if they declare `tables=[...]`."""

    def join(
        self, events: Any, table: str, how: Literal["left", "inner"] = "left", on: dict[str, str] | None = None
    ) -> Any:
        """Add to each event the row of `table` that holds at its `event_time`: one at most, so no event is doubled.

        Added are the columns of the table besides its key, and `<table>_since`, the time from which the row holds; all
        null for an event without a row, which how="inner" leaves out.

        Args:
            events: a DataFrame with `event_time` and the columns of the key.
            table: its name.
            how: "left" or "inner".
            on: columns of the table's key to columns of `events`, where they are called otherwise.

        Raises:
            ConfigError: the table is not declared in `tables=[...]`, or columns are missing, of another type or there
                already; a retry does not help.
        """


def flow(
    *,
    source: str | list[str],
    to: str,
    owner: str,
    stage: str,
    **options: str | bool | list[str],
) -> Callable[[_Flow], _Flow]:
    """Mark `flow` as the function of this file's flow; all arguments are literals, explained in `FlowSpec`.

    `options` are `tables`, `isolation`, `latency` and `environment`.
    """

    def mark(function: _Flow) -> _Flow:
        return function

    return mark
