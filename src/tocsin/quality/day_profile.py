"""The profile of a day: the figures of one source and one UTC day that rules are about, and that drift is seen in.

A figure has a name: `rows` of the whole day, `message.null_ratio` of a column, `known_action.violations` of a rule for
rows. A figure is null where there is nothing to take it of, such as the mean of a column that is null throughout.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from pydantic import BaseModel

from tocsin.declare.model.source import Source
from tocsin.quality.suites.expectations import NUMBERS
from tocsin.quality.suites.row_rules import RowRule

HOURS = tuple(f"hour_{hour:02d}" for hour in range(24))

DAY_FIGURES: dict[str, tuple[str, str]] = {
    "rows": ("bigint", "events, each once"),
    "landed": ("bigint", "events that landed for the day, including duplicates"),
    "imported": ("bigint", "of them, from files"),
    "duplicates": ("bigint", "duplicate events that were dropped"),
    "duplicate_ratio": ("double", "duplicates by landed"),
    "late": ("bigint", "events later than the source's lateness"),
    "late_ratio": ("double", "late by landed"),
    "quarantined": ("bigint", "unusable records of the day, and unusable rows of imported files"),
    "quarantine_ratio": ("double", "quarantined by quarantined and landed"),
    "missing_offsets": ("bigint", "offsets of the events topic that never landed, and records removed before ingest"),
    "first_event": ("timestamp", "the earliest event time"),
    "last_event": ("timestamp", "the latest event time"),
    "quiet_minutes": ("double", "from the latest event to midnight"),
    "hours": ("bigint", "hours that have an event"),
    "completeness": ("double", "hours by 24"),
    **{name: ("bigint", f"events from {name[-2:]}:00 on, for an hour") for name in HOURS},
}
"""Name, type and meaning of the figures of a whole day."""

_ANY = {"nulls": ("bigint", "missing values"), "null_ratio": ("double", "nulls by rows")}
_DISTINCT = {"distinct": ("bigint", "different values; estimated, with a standard error of 1.6 %")}
_NUMBER = {
    "mean": ("double", "of the finite values"),
    "minimum": ("double", "of the finite values"),
    "maximum": ("double", "of the finite values"),
    "p05": ("double", "5 % of the values are lower; estimated"),
    "median": ("double", "half of the values are lower; estimated"),
    "p95": ("double", "95 % of the values are lower; estimated"),
}
COLUMN_FIGURES: dict[str, dict[str, tuple[str, str]]] = {
    "string": _ANY | _DISTINCT | {"longest": ("bigint", "bytes of the longest value, as UTF-8")},
    "boolean": _ANY | {"true_ratio": ("double", "true by true and false")},
    "int": _ANY | _DISTINCT | _NUMBER,
    "bigint": _ANY | _DISTINCT | _NUMBER,
    "double": _ANY | {"infinite": ("bigint", "infinite values")} | _NUMBER,
    "timestamp": _ANY,
}
"""Name, type and meaning of the figures of a column, by its type."""

RULE_FIGURES = {
    "violations": ("bigint", "events that break the rule"),
    "violation_ratio": ("double", "violations by events that the rule is about"),
}
"""The same for a rule for rows."""

Figure = int | float | datetime | None


def figure_types(source: Source, rules: Iterable[RowRule] = ()) -> dict[str, str]:
    """Names and types of all figures of the profile of `source` with these rules for rows."""
    figures = {name: kind for name, (kind, _) in DAY_FIGURES.items()}
    for column, kind in source.columns.items():
        figures |= {f"{column}.{name}": of for name, (of, _) in COLUMN_FIGURES[kind].items()}
    for rule in rules:
        figures |= {f"{rule.name}.{name}": of for name, (of, _) in RULE_FIGURES.items()}
    return figures


class ProfileRow(BaseModel, frozen=True):
    """One figure, as a row of the table that all profiles together are.

    Attributes:
        column: that it is about, or the rule; null for the whole day.
    """

    day: date
    source: str
    column: str | None
    metric: str
    value: Figure
    version: str

    @property
    def name(self) -> str:
        """Of the figure, as rules name it."""
        return f"{self.column}.{self.metric}" if self.column else self.metric


class Profile(BaseModel, frozen=True, extra="forbid"):
    """All figures of one sealed day; `version` is that of the sealed day."""

    source: str
    day: date
    version: str
    figures: dict[str, Figure]

    def number(self, name: str) -> float | None:
        """Return the figure `name`; None when it is null, unknown, or a time."""
        value = self.figures.get(name)
        return None if isinstance(value, datetime) or value is None else float(value)

    @property
    def by_hour(self) -> tuple[int, ...]:
        """Events of each of the 24 hours."""
        return tuple(int(self.number(name) or 0) for name in HOURS)

    def rows(self) -> list[ProfileRow]:
        """The figures as rows of a table."""
        rows = []
        for name, value in self.figures.items():
            column, _, metric = name.rpartition(".")
            place = {"day": self.day, "source": self.source, "version": self.version}
            rows.append(ProfileRow(column=column or None, metric=metric, value=value, **place))
        return rows


def bounds(day: date) -> tuple[datetime, datetime]:
    """Midnight at the begin and at the end of `day`, UTC."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)


def ratio(part: int, whole: int) -> float | None:
    """`part` by `whole`; None when `whole` is 0."""
    return part / whole if whole else None


def is_number(kind: str) -> bool:
    """Return whether a column of this type has a mean."""
    return kind in NUMBERS
