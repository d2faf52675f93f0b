r"""The contract of a flow: one file, `flows/<name>.py`, that makes events of one source into events of another.

::

    @flow(source="lines", to="words", owner="search@example.com", stage="live")
    def flow(events: DataFrame) -> DataFrame:
        words = F.split(F.lower("line"), r"\W+")
        return events.select("*", F.posexplode(words).alias("position", "word")).where("word != ''")

What `flow` receives: the declared columns of the source, and those of the envelope (`tocsin.model.source.ENVELOPE`).
What it returns: the same envelope, the declared columns of the source `to`, and `position` if it makes several rows of
one event. It keeps no state. An event time that it changes is that of the new event.

The declaration is read with `ast`; nothing imports a flow to learn about it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tocsin.model.detector import Stage

_Flow = TypeVar("_Flow", bound=Callable[..., Any])

POSITION = "position"
"""The column that tells the rows apart that a flow makes of one event: a number from 0 on."""


@dataclass(frozen=True, kw_only=True)
class FlowSpec:
    """The declaration in a flow's file, as the platform reads it.

    Attributes:
        name: the file name without `.py`.
        path: the file.
        source: name of the source whose events it reads.
        to: name of the source whose events it writes; its format is `events`.
        owner: e-mail address that mails about its job go to.
        stage: draft and retired do not run, shadow and live do.
        tables: names of the tables that it joins; see `tocsin.model.table`.
        title: first line of the docstring.
        doc: the whole docstring.
        version: see `tocsin.project.declaration.version_of`.
    """

    name: str
    path: Path
    source: str
    to: str
    owner: str
    stage: Stage
    tables: tuple[str, ...] = ()
    title: str
    doc: str
    version: str


def flow(*, source: str, to: str, owner: str, stage: str, tables: list[str] | None = None) -> Callable[[_Flow], _Flow]:
    """Mark `flow` as the function of this file's flow; all arguments are literals, explained in `FlowSpec`."""

    def mark(function: _Flow) -> _Flow:
        return function

    return mark
