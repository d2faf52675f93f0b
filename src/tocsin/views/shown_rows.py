"""Make the rows that readers see of those on the topic, where a view shows others: the latest of each key, or sums.

The rows of the topic are kept beside them, as parts. Whatever changes a part, the shown row is made anew of all its
parts, so a new value takes the place of the old one, and nothing is counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from tocsin.declare.model.view import ViewSpec
from tocsin.views.row_store import RowStore
from tocsin.views.stored_row import StoredRow, name_of, parts_of
from tocsin.views.view_row import canonical_key

Place = tuple[int, int, datetime]
"""Partition, offset and append time of a record."""

_CHUNK = 1000


class ShownRows:
    """The shown rows of one view, whose parts are in `store`."""

    def __init__(self, spec: ViewSpec, store: RowStore) -> None:
        self._key, self._store = spec.shown.key, store
        self._is_total = bool(spec.total)

    def of_change(
        self, build: str, parts: Iterable[StoredRow], removed: Mapping[str, tuple[StoredRow, Place]]
    ) -> tuple[list[StoredRow], list[StoredRow]]:
        """Return the shown rows of `build` that change, and those that go.

        The store does not have `parts` yet. `removed` are parts by identity, with the place of the record that says so.
        """
        touched: dict[str, list[tuple[StoredRow, Place]]] = {}
        for part, place in (*((part, _place(part)) for part in parts), *removed.values()):
            touched.setdefault(self._name(part), []).append((part, place))
        shown: list[StoredRow] = []
        gone: list[StoredRow] = []
        for name, changes in touched.items():
            here = {part.identity: part for part in (*self._parts(build, name), *(part for part, _ in changes))}
            left = [part for identity, part in here.items() if identity not in removed]
            row = self._row(build, left or [*here.values()], max((place for _, place in changes), key=_appended_at))
            (shown if left else gone).append(row)
        return shown, gone

    def make_all(self, build: str) -> None:
        """Make all rows of `build` of the parts that the store has."""
        self._store.clear(build)
        names = {self._name(part) for part in self._store.rows(parts_of(build))}
        rows: list[StoredRow] = []
        for name in names:
            parts = self._parts(build, name)
            rows.append(self._row(build, parts, max(map(_place, parts), key=_appended_at)))
            if len(rows) == _CHUNK:
                self._store.apply(rows, (), {})
                rows = []
        self._store.apply(rows, (), {})

    def _name(self, part: StoredRow) -> str:
        return name_of(part.key[column] for column in self._key)

    def _parts(self, build: str, name: str) -> list[StoredRow]:
        return self._store.rows_named(parts_of(build), name, is_prefix=self._is_total)

    def _row(self, build: str, parts: list[StoredRow], place: Place) -> StoredRow:
        latest: dict[str, StoredRow] = {}
        for part in sorted(parts, key=lambda part: (part.window_start is not None, part.window_start)):
            latest[part.name] = part
        last = parts[0] if self._is_total else next(iter(latest.values()))
        key = {column: last.key[column] for column in self._key}
        partition, offset, appended_at = place
        return last._replace(
            identity=canonical_key(key, None),
            name=name_of(key.values()),
            key=key,
            window_start=None,
            window_end=None,
            values=_sum_columns(latest.values()) if self._is_total else last.values,
            build=build,
            partition=partition,
            offset=offset,
            appended_at=appended_at,
        )


def _place(row: StoredRow) -> Place:
    return row.partition, row.offset, row.appended_at


def _appended_at(place: Place) -> datetime:
    return place[2]


def _sum_columns(rows: Iterable[StoredRow]) -> dict[str, Any]:
    """Sum up each value; null counts as nothing, and the sum of nothing is null."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for column, value in row.values.items():
            columns.setdefault(column, []).extend([] if value is None else [value])
    return {column: _sum(numbers) for column, numbers in columns.items()}


def _sum(numbers: list[Any]) -> Any:
    """Add up exactly: the sum does not depend on the order of the numbers."""
    if not numbers:
        return None
    return math.fsum(numbers) if any(isinstance(number, float) for number in numbers) else sum(numbers)
