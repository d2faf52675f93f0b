"""The contract of a table: rows by key that change, which flows, detectors and views join; `tables/<name>.toml`.

::

    title = "Segments of the shop's customers"
    owner = "crm@example.com"
    source = "customers"          # or view = "stock", topic = "a compacted topic of somebody else",
                                  # file = "segments.csv", or history = "purchases" with sql = "SELECT ... FROM events"
    key = "customer_id"           # the last record of a key says what its row is
    settle = "2 minutes"          # a row holds from so long after its record came in
    keep = "60 days"              # for so long it is known what a row was before

    [schema]
    customer_id = "string"
    segment = "string"

    [optional]
    usual_spending = "double"

A row is joined to the events of the time in which it holds, so an event finds the same row on the stream, after a
crash, and in a batch over history. `docs/write/tables.md` says how. Files are read by `tocsin.declare.source_file`.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from pydantic import BaseModel

from tocsin.declare.model.names import Names

FROM, UNTIL = "valid_from", "valid_to"
"""Columns of a table's versions: since when a row holds, and the moment from which it does not, UTC."""


class TableSpec(BaseModel, frozen=True, extra="forbid"):
    """The declaration in a table's file.

    Attributes:
        source, view, topic, file, history: what its rows are made of, exactly one of them: the events of a source, the
            rows of a view without windows, `keep` and `total`, a topic of JSON objects, where a record without a value
            ends the rows of its key, a file of the project, or the sealed history of a source.
        settle: a row holds from so long after its record was appended. The jobs that join it have learnt of it by then.
        every: with `history`, a version is made for each so many days.
        trains: the detector of whose models these are the rows; empty for a table that somebody has declared.
        max_rows: more versions of rows than this are not taken: each job that joins the table holds all of them.
    """

    name: str
    title: str
    owner: str
    source: str | None = None
    view: str | None = None
    topic: str | None = None
    file: str | None = None
    history: str | None = None
    sql: str | None = None
    days: int = 60
    every: int = 1
    trains: str = ""
    key: tuple[str, ...]
    columns: dict[str, str]
    optional: frozenset[str] = frozenset()
    settle: timedelta = timedelta(minutes=2)
    keep: timedelta = timedelta(days=60)
    max_rows: int = 200_000

    @property
    def made_by(self) -> str:
        """Identify how the rows are made of history: 12 hex digits that change with the query and the columns."""
        made_by = repr([self.history, self.sql, self.days, self.key, self.columns])
        return hashlib.sha256(made_by.encode()).hexdigest()[:12]

    @property
    def values(self) -> list[str]:
        """The columns that a join adds, without `since`."""
        return [name for name in self.columns if name not in self.key]

    @property
    def since(self) -> str:
        """The column that a join adds with the time from which on the row holds."""
        return f"{self.name}_since"

    @property
    def punctual(self) -> timedelta:
        """How long after a record was appended its row is known in time: jobs learn of it in the rest of `settle`."""
        return self.settle / 4

    def follows(self, names: Names) -> str:
        """Name the topic that its rows are made of."""
        if self.source is not None:
            return names.events(self.source)
        return names.view(self.view) if self.view is not None else str(self.topic)
