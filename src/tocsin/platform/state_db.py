"""A small SQLite file of one job: what it has made of a topic, the offsets behind that, and facts by name."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tocsin.declare.model.errors import TransientError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS offsets ("partition" INTEGER PRIMARY KEY, next INTEGER);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
"""

TOPIC_ID = "topic_id"
"""The fact that is Kafka's id of the topic to which the offsets belong; "" or none while it is not known."""


class StateDb:
    """The file, for the one process that writes it.

    Methods raise a TransientError if the file is locked, cannot be written, or the disk is full; nothing was changed.
    """

    def __init__(self, path: Path, schema: str) -> None:
        """Open `path`, with tables of one's own by `schema`; it is made if it is not there."""
        self._path = path
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            # After a power cut the last transactions may be gone; the topic has them still.
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA + schema)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def offsets(self) -> dict[int, int]:
        """Return the offset of the next record to apply, by partition."""
        return dict(self._all('SELECT "partition", next FROM offsets'))

    def fact(self, name: str) -> Any:
        """Return the fact `name`; None if there is none."""
        found = self._all("SELECT value FROM facts WHERE name = ?", name)
        return json.loads(found[0][0]) if found else None

    def note(self, **facts: Any) -> None:
        """Store facts, JSON values by name; nothing else changes."""
        with self._translated():
            self._note(facts)

    def _put_offsets(self, offsets: Mapping[int, int]) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO offsets VALUES (?, ?)", offsets.items())

    def _note(self, facts: dict[str, Any]) -> None:
        values = [(name, json.dumps(value)) for name, value in facts.items()]
        self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", values)

    def _all(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._connection.execute(query, arguments).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            raise TransientError(f"{self._path}: {error}") from error
