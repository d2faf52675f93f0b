"""The expectations of Great Expectations that Tocsin takes, where each is possible, and what it needs.

A table of our own, because loading Great Expectations takes seconds and `tocsin check` must not; a test compares the
two. Names and meanings are those of Great Expectations 1.24.1. Its JSON schemas would not do: they know neither columns
nor stages, and refuse a `mostly` of 0.995.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.quality.verdict import CheckStage


class ValueKind(StrEnum):
    """The kind of value that an argument takes."""

    COLUMN = "the name of a column"
    COLUMNS = "a list of names of columns"
    LIMIT = "a number, a time such as 2026-01-31T00:00:00Z, or a $PARAMETER"
    COUNT = "a whole number from 0 on"
    COUNT_LIMIT = "a whole number from 0 on, or a $PARAMETER"
    PATTERN = "a regular expression"
    VALUES = "a list of values of the column's type"
    FLAG = "true or false"
    SHARE = "a number above 0, at most 1"
    IGNORED = "both_values_are_missing, either_value_is_missing or neither"
    IGNORED_ROWS = "all_values_are_missing, any_value_is_missing or never"


@dataclass(frozen=True)
class KnownExpectation:
    """One expectation.

    Attributes:
        short: what the default name of a rule is made of, after its column.
    """

    short: str
    needed: dict[str, ValueKind] = field(default_factory=dict)
    optional: dict[str, ValueKind] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    stages: frozenset[CheckStage] = frozenset((CheckStage.ROW, CheckStage.DAY, CheckStage.FINDING))
    types: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, ValueKind]:
        """All arguments that it takes."""
        return self.needed | self.optional


NUMBERS = ("int", "bigint", "double")
MOSTLY = {"mostly": ValueKind.SHARE}

_COLUMN = {"column": ValueKind.COLUMN}
_STRICT = {"strict_min": ValueKind.FLAG, "strict_max": ValueKind.FLAG}
_PAIR = {"column_A": ValueKind.COLUMN, "column_B": ValueKind.COLUMN}
_BAND = {"min_value": ValueKind.LIMIT, "max_value": ValueKind.LIMIT} | _STRICT
_LENGTHS = {"min_value": ValueKind.COUNT, "max_value": ValueKind.COUNT} | _STRICT
_EITHER = ("min_value", "max_value")
_FINDING = frozenset((CheckStage.FINDING,))
_TEXT = ("string",)


def _of_values(short: str, **arguments: ValueKind) -> KnownExpectation:
    return KnownExpectation(short, _COLUMN | arguments, MOSTLY)


def _of_text(short: str, **arguments: ValueKind) -> KnownExpectation:
    return KnownExpectation(short, _COLUMN | arguments, MOSTLY, types=_TEXT)


def _of_column(short: str) -> KnownExpectation:
    return KnownExpectation(short, _COLUMN, _BAND, _EITHER, _FINDING, NUMBERS)


KNOWN: dict[str, KnownExpectation] = {
    "expect_column_values_to_not_be_null": _of_values("not_null"),
    "expect_column_values_to_be_null": _of_values("null"),
    "expect_column_values_to_be_between": KnownExpectation(
        "between", _COLUMN, _BAND | MOSTLY, _EITHER, types=(*NUMBERS, "timestamp")
    ),
    "expect_column_values_to_be_in_set": _of_values("in_set", value_set=ValueKind.VALUES),
    "expect_column_values_to_not_be_in_set": _of_values("not_in_set", value_set=ValueKind.VALUES),
    "expect_column_values_to_match_regex": _of_text("matches", regex=ValueKind.PATTERN),
    "expect_column_values_to_not_match_regex": _of_text("matches_not", regex=ValueKind.PATTERN),
    "expect_column_value_lengths_to_be_between": KnownExpectation(
        "length", _COLUMN, _LENGTHS | MOSTLY, _EITHER, types=_TEXT
    ),
    "expect_column_value_lengths_to_equal": _of_text("length", value=ValueKind.COUNT),
    "expect_column_pair_values_a_to_be_greater_than_b": KnownExpectation(
        "above", _PAIR, {"or_equal": ValueKind.FLAG, "ignore_row_if": ValueKind.IGNORED} | MOSTLY
    ),
    "expect_column_pair_values_to_be_equal": KnownExpectation(
        "equals", _PAIR, {"ignore_row_if": ValueKind.IGNORED} | MOSTLY
    ),
    "expect_table_row_count_to_be_between": KnownExpectation(
        "row_count", {}, {"min_value": ValueKind.COUNT_LIMIT, "max_value": ValueKind.COUNT_LIMIT}, _EITHER, _FINDING
    ),
    "expect_column_values_to_be_unique": KnownExpectation("unique", _COLUMN, MOSTLY, (), _FINDING),
    "expect_compound_columns_to_be_unique": KnownExpectation(
        "unique", {"column_list": ValueKind.COLUMNS}, {"ignore_row_if": ValueKind.IGNORED_ROWS}, (), _FINDING
    ),
    "expect_column_mean_to_be_between": _of_column("mean"),
    "expect_column_median_to_be_between": _of_column("median"),
    "expect_column_min_to_be_between": _of_column("minimum"),
    "expect_column_max_to_be_between": _of_column("maximum"),
    "expect_column_unique_value_count_to_be_between": KnownExpectation("distinct", _COLUMN, _BAND, _EITHER, _FINDING),
}
"""By name. `mostly` means nothing on a profile, which has one row: see `arguments_at`."""

TOLD: dict[str, str] = {
    "expect_column_values_to_be_of_type": "the type of a column is what the source's file declares",
    "expect_column_values_to_be_in_type_list": "the type of a column is what the source's file declares",
    "expect_column_to_exist": "the columns are what the source's file declares",
}
"""Expectations that are not needed, and why."""


def arguments_at(stage: CheckStage, expectation: KnownExpectation) -> dict[str, ValueKind]:
    """The arguments of `expectation` that mean something at `stage`."""
    return {
        name: kind for name, kind in expectation.arguments.items() if stage is not CheckStage.DAY or name not in MOSTLY
    }


def possible_at(stage: CheckStage) -> list[str]:
    """Names of the expectations that are possible at `stage`."""
    return [name for name, expectation in KNOWN.items() if stage in expectation.stages]
