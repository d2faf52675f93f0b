"""Read with Spark what landed for a day: as the source is declared now, whatever it was declared like then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.source import Source, columns_of
from tocsin.history.landing_ledger import Entry, LandedFile
from tocsin.history.places import Places
from tocsin.quality.day_facts import ColumnChange


class LandedDay:
    """The events that `entries` have landed for one day of a source, duplicates included."""

    def __init__(
        self, spark: SparkSession, places: Places, source: Source, day: date, entries: Iterable[Entry]
    ) -> None:
        self._spark, self._places, self._declared = spark, places, columns_of(source)
        groups: dict[tuple[tuple[str, str], ...], list[LandedFile]] = {}
        for entry in entries:
            groups.setdefault(tuple(entry.columns.items()), []).extend(entry.of(day))
        self._groups = [(dict(columns), files) for columns, files in groups.items()]

    def events(self, others: Iterable[LandedDay] = ()) -> DataFrame | None:
        """Read all of them, and those of `others` of the source, with the columns of now; None without any.

        A column is null where it was not declared then, and where its value is none of its type now.
        """
        groups: dict[tuple[tuple[str, str], ...], list[LandedFile]] = {}
        for day in (self, *others):
            for columns, files in day._groups:
                groups.setdefault(tuple(columns.items()), []).extend(files)
        parts = [
            self._read(landed := dict(columns), files).select(
                *[_column(name, kind, landed) for name, kind in self._declared.items()]
            )
            for columns, files in groups.items()
        ]
        return reduce(DataFrame.unionByName, parts) if parts else None

    def changes(self) -> tuple[ColumnChange, ...]:
        """List what has changed since; values that are lost by it are counted by a scan of their columns alone."""
        return tuple(change for columns, files in self._groups for change in self._changes(columns, files))

    def _changes(self, landed: dict[str, str], files: list[LandedFile]) -> Iterator[ColumnChange]:
        changed = [name for name in self._declared | landed if landed.get(name) != self._declared.get(name)]
        lost = self._lost(landed, files, [name for name in changed if name in landed and name in self._declared])
        events = sum(file.total for file in files)
        for name in changed:
            was, now = landed.get(name), self._declared.get(name)
            yield ColumnChange(column=name, was=was, now=now, events=events, lost=lost.get(name, 0))

    def _lost(self, landed: dict[str, str], files: list[LandedFile], names: list[str]) -> dict[str, int]:
        """Count the values of each of the columns `names` that are none of the type of now."""
        if not names:
            return {}
        broken = [
            F.col(f"`{name}`").isNotNull() & F.col(f"`{name}`").try_cast(self._declared[name]).isNull()
            for name in names
        ]
        (row,) = self._read(landed, files).agg(*[F.count_if(one) for one in broken]).collect()
        return dict(zip(names, row, strict=True))

    def _read(self, columns: dict[str, str], files: list[LandedFile]) -> DataFrame:
        schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        paths = [str(self._places.root / file.path) for file in files]
        # The folders look like partitions to Spark; they are none.
        return self._spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)


def _column(name: str, kind: str, landed: dict[str, str]) -> Column:
    if name not in landed:
        return F.lit(None).cast(kind).alias(name)
    column = F.col(f"`{name}`")
    return column if landed[name] == kind else column.try_cast(kind).alias(name)
