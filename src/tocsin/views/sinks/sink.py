"""The contract of a sink outside: a server in which others read the rows of a view.

Adding one is a module here, and an entry in `tocsin.views.sinks.sink_registry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tocsin.kafka.reader import Offsets
from tocsin.model.errors import TocsinError
from tocsin.views.stored_row import StoredRow


class SinkLost(TocsinError):
    """The sink does not have what was applied to it last: it was emptied, restored or removed. It must be filled."""


@dataclass(frozen=True)
class SinkBatch:
    """What to do in a sink, in one transaction.

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
            SinkLost: what it remembers is not what it was told last.
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
