"""Define a sink: a server in which others read the rows of a view. Its kinds are in `tocsin.declare.sinks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pkgutil import resolve_name
from typing import Protocol

from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.model.names import view_job
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.declare.sinks import SINKS
from tocsin.platform.kafka.reader import Offsets
from tocsin.views.stored_row import StoredRow


class SinkLost(TocsinError):
    """The sink does not have what was applied to it last: it was emptied, restored or removed. It must be filled."""


@dataclass(frozen=True)
class SinkBatch:
    """A change of a sink, in one transaction.

    Attributes:
        rows: to put in place; one version of each.
        removed: to take away.
        offsets: to remember: all that came before them is applied.
    """

    rows: Sequence[StoredRow]
    removed: Sequence[StoredRow]
    offsets: Offsets


class Sink(Protocol):
    """One view in one server. For one thread.

    Raises from every method:
        TransientError: the server is away, or refuses; says why, and a retry helps once that is over.
    """

    refused: int
    """Rows that the sink cannot hold, such as a key too long for its index; left out of it."""

    def offsets(self) -> Offsets | None:
        """Return what was remembered with the last batch; None if the sink does not hold the view."""

    def apply(self, batch: SinkBatch) -> None:
        """Apply `batch` and remember its offsets, all or nothing.

        Raises:
            SinkLost: what it remembers is not what this process wrote last.
        """

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        """Let the sink hold `rows` and nothing else of the view, and remember `offsets`.

        Args:
            rows: all rows of the view.
            gone: rows that it may hold and should not, for a sink that cannot list its own.
            offsets: to remember.
        """

    def close(self) -> None:
        """Leave the server."""


def chunks(rows: Iterable[StoredRow], size: int) -> Iterator[list[StoredRow]]:
    """Cut `rows` into lists of `size`."""
    left = iter(rows)
    while chunk := list(islice(left, size)):
        yield chunk


def open_sink(spec: ViewSpec, settings: Settings, *, is_shared: bool = False) -> Sink | None:
    """Open the sink that `spec` declares; None if that is none, or one without an address. Nothing is connected yet.

    Args:
        spec: as readers see the view.
        settings: of the installation.
        is_shared: whether several jobs are to write it.

    Raises:
        ConfigError: its address cannot be read, or is none, or only one job may write it.
    """
    kind = SINKS.get(spec.sink)
    if kind is not None and is_shared and not kind.is_shared:
        raise ConfigError.one(spec.path, f"{spec.sink} remembers no offsets, so one job alone must write it")
    address = None if kind is None else settings.views.address(spec.sink)
    if kind is None or address is None:
        return None
    sink: Sink = resolve_name(kind.sink)(address, settings.names.group(view_job(spec.name)), spec)
    return sink


def missing_address(spec: ViewSpec, settings: Settings) -> str:
    """Say that the sink of `spec` is not written because it has no address; empty if it has one or needs none."""
    kind = spec.sink
    if kind not in SINKS or settings.views.has_address(kind):
        return ""
    return f"kept in SQLite alone: {kind} has no address; set views.{kind} or views.{kind}_file in tocsin.toml"
