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

IN_A_PASSWORD = "in a password %, / and @ are written as %25, %2F and %40"
"""What to say of an address that cannot be read. Not the address: it may hold a password."""


class SinkLost(TocsinError):
    """The sink does not have what was applied to it last: it was emptied, restored or removed. It must be filled."""


@dataclass(frozen=True)
class SinkBatch:
    """A change of a sink, in one transaction: one version of each row. All that came before `offsets` is applied."""

    rows: Sequence[StoredRow]
    removed: Sequence[StoredRow]
    offsets: Offsets


class Sink(Protocol):
    """One view in one server. For one thread.

    A class of sinks is called with an address (a faulty one is a ConfigError), the name under which the server
    remembers offsets, and the view; it connects when it is used.

    Raises from every method:
        TransientError: the server is away, or refuses; says why, and a retry helps once that is over.
    """

    refused: int
    """Rows that the sink cannot hold, such as a key too long for its index; left out of it."""

    def offsets(self) -> Offsets | None:
        """Return what was remembered with the last batch; None if the sink does not hold the view."""

    def apply(self, batch: SinkBatch) -> None:
        """Apply `batch` and remember its offsets, all or nothing; SinkLost if it lacks those of the batch before."""

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        """Let the sink hold `rows` and nothing else of the view, and remember `offsets`.

        `gone` are rows that it may hold and should not, for a sink that cannot list its own.
        """

    def close(self) -> None:
        """Leave the server."""


def chunks(rows: Iterable[StoredRow], size: int) -> Iterator[list[StoredRow]]:
    """Cut `rows` into lists of `size`."""
    left = iter(rows)
    while chunk := list(islice(left, size)):
        yield chunk


def open_sink(spec: ViewSpec, settings: Settings, *, is_shared: bool = False) -> Sink | None:
    """Open the sink of `spec`, as readers see the view; None if that is none, or has no address. It connects later.

    ConfigError if the address cannot be read, or is none, or only one job may write the sink and it `is_shared`.
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
