"""The contract of a view: one file, `views/<name>.py`, that keeps the result of a query up to date in a sink.

::

    @view(source="words", key="word", window="10 seconds", sink="postgres", keep="7 days",
          owner="search@example.com", stage="live")
    def view(events: DataFrame) -> DataFrame:
        return events.groupBy("window", "word").agg(F.count("*").alias("count"))

What `view` receives is what a detector receives (`tocsin.declare.model.detector`). What it returns: the columns of the
key, `window` (unless `window=None` without `keep`), and one column for each value. A row whose key is null is counted
and left out.

The declaration is read with `ast`; nothing imports a view to learn about it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tocsin.declare.model.detector import Resources, Stage

_View = TypeVar("_View", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class ViewSpec:
    """The declaration in a view's file, as the platform reads it.

    Attributes:
        key: columns that tell the rows apart, besides the window.
        window: length of the tumbling window; None for a view over all events.
        slide: distance between window starts; None for tumbling windows.
        sink: a kind of `tocsin.declare.sinks` that the rows are copied to; `sqlite` for none: every view is kept in a
            SQLite file of its own, which `tocsin view` and REST read. `topic` says that others read its topic.
        table: name of the table, the measurement, or the beginning of the keys, in the sink.
        keep: how long after its end a window stays in the sink, or a row that no event changes if there are no windows;
            None for always.
        total: columns of the key over whose other columns the rows are summed up for readers; () for no sums.
    """

    name: str
    path: Path
    sources: tuple[str, ...]
    key: tuple[str, ...]
    window: timedelta | None
    sink: str = "sqlite"
    table: str
    slide: timedelta | None = None
    keep: timedelta | None = None
    total: tuple[str, ...] = ()
    owner: str
    stage: Stage
    memory: int | None = None
    resources: Resources | None = None
    isolation: bool = False
    latency: str = ""
    environment: str = ""
    tables: tuple[str, ...] = ()
    title: str
    doc: str
    version: str
    code: str = ""
    time_zone: ClassVar[str] = ""  # windows of views are in UTC

    @property
    def keeps_state(self) -> bool:
        """Return whether it remembers events: with or without windows, it does."""
        return True

    @property
    def shows_latest(self) -> bool:
        """Return whether each key shows the row of its latest period, so that an idle key can be forgotten."""
        return self.window is None and self.keep is not None

    @property
    def is_condensed(self) -> bool:
        """Return whether readers see other rows than the topic holds; see `tocsin.views.applier`."""
        return self.shows_latest or bool(self.total)

    @property
    def computed(self) -> ViewSpec:
        """Return the view as Spark computes it: periods of the length of `keep` are windows, columns of `total` first.

        Spark removes state by windows alone, so a view that forgets idle keys is computed period by period.
        """
        rest = tuple(column for column in self.key if column not in self.total)
        return replace(self, window=self.window or self.keep, key=(*self.total, *rest))

    @property
    def shown(self) -> ViewSpec:
        """Return the view as sinks and readers know it."""
        return replace(self, key=self.total or self.key)


def view(
    *,
    source: str | list[str],
    key: str | list[str],
    window: str | None,
    owner: str,
    stage: str,
    **options: str | list[str] | dict[str, int | str],
) -> Callable[[_View], _View]:
    """Mark `view` as the function of this file's view; it stays an ordinary, testable function.

    All arguments are literals. The meaning of each is that of the attribute of `ViewSpec` with its name; `options` are
    `sink`, `table` (the name of the view unless told), `slide`, `keep`, `total`, `memory`,
    `resources`, `isolation`, `latency`, `environment` and `tables`.
    """

    def mark(function: _View) -> _View:
        return function

    return mark
