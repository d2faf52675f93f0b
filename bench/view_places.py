"""Where the rows of the measured views are: looked up from outside, whoever writes them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import redis


class Place(Protocol):
    """A sink with rows that have a name and a `count`."""

    def clear(self) -> None:
        """Remove everything."""

    def has_begun(self) -> bool:
        """Whether there is a row."""

    def has(self, names: Sequence[str]) -> bool:
        """Whether all of these rows are there."""

    def counts(self) -> dict[str, int]:
        """All rows."""


class RedisPlace:
    """Hashes `<table>:<name>`."""

    def __init__(self, address: str, table: str) -> None:
        self._client, self._table = redis.Redis.from_url(address, decode_responses=True), table

    def clear(self) -> None:
        """See `Place`."""
        self._client.flushall()

    def has_begun(self) -> bool:
        """See `Place`."""
        return bool(self._client.dbsize())

    def has(self, names: Sequence[str]) -> bool:
        """See `Place`."""
        return self._client.exists(*(f"{self._table}:{name}" for name in names)) == len(names)

    def counts(self) -> dict[str, int]:
        """See `Place`."""
        keys = list(self._client.scan_iter(f"{self._table}:*", count=1000))
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hget(key, "count")
        return {key.partition(":")[2]: int(count) for key, count in zip(keys, pipeline.execute(), strict=True)}


class SqlitePlace:
    """A table of a SQLite file: that of the applier, or one with the columns `name` and `count`."""

    def __init__(self, path: Path, table: str) -> None:
        self.path, self._table = path, table

    def clear(self) -> None:
        """See `Place`."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()

    def has_begun(self) -> bool:
        """See `Place`."""
        return bool(self._ask(f"SELECT 1 FROM {self._table} LIMIT 1"))

    def has(self, names: Sequence[str]) -> bool:
        """See `Place`."""
        places = ", ".join("?" * len(names))
        return len(self._ask(f"SELECT 1 FROM {self._table} WHERE name IN ({places})", *names)) == len(names)

    def counts(self) -> dict[str, int]:
        """See `Place`."""
        count = "json_extract(\"values\", '$.count')" if self._table == "rows" else "count"
        return dict(self._ask(f"SELECT name, {count} FROM {self._table}"))

    def _ask(self, query: str, *arguments: str) -> list[Any]:
        if self.path.exists():
            with (
                contextlib.suppress(sqlite3.OperationalError),  # it has no tables yet
                contextlib.closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as connection,
            ):
                return connection.execute(query, arguments).fetchall()
        return []


class RedisTail:
    """Hears from Redis itself what it writes, and when, between `with` and its end.

    Attributes:
        seen: by user, what `latest` became, and when, in milliseconds since the epoch by the clock of Redis.
    """

    def __init__(self, address: str, table: str) -> None:
        self.seen: dict[str, list[tuple[int, float]]] = {}
        self._begin = f"HSET {table}:"
        self._client = redis.Redis.from_url(address, socket_timeout=None)  # nothing may come for long
        self._thread = threading.Thread(target=self._run, name="tail of Redis", daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._client.ping()  # is heard too, and ends the thread
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        listen: Any = self._client.monitor
        with listen() as monitor:
            while not self._stop.is_set():
                heard = monitor.next_command()
                if heard["command"].startswith(self._begin):
                    words = heard["command"].removeprefix(self._begin).split(" ")
                    latest = int(words[words.index("latest") + 1])
                    self.seen.setdefault(words[0], []).append((latest, 1000 * heard["time"]))
