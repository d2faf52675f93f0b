r"""Rules for single events as SQL: one text for the stream, which applies it, and for the day, which counts by it.

The meaning is that of Great Expectations on pandas: a missing value (null; of a double NaN too) is left out, except
where it is what the rule is about. Patterns are searched for, not matched whole, and are Java's: `\d` and `\w` mean
ASCII.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tocsin.quality.suites.expectations import KNOWN
from tocsin.quality.suites.suite import Rule, Suite, moment
from tocsin.quality.verdict import Severity

Refer = Callable[[str], str]
"""The SQL that stands for a column."""


def quoted(column: str) -> str:
    """A column under its own name."""
    return f"`{column}`"


@dataclass(frozen=True)
class RowRule:
    """One rule for single events, ready to be applied; `types` are those of the columns that it is about."""

    rule: Rule
    types: Mapping[str, str]

    @property
    def name(self) -> str:
        """Of the rule; names of metrics and reasons are made of it."""
        return self.rule.name

    @property
    def refuses(self) -> bool:
        """Return whether an event that breaks it goes to quarantine."""
        return self.rule.severity is Severity.CRITICAL

    @property
    def warns(self) -> bool:
        """Return whether the stream counts an event that breaks it; rules of severity info are for the day alone."""
        return self.rule.severity is Severity.WARNING

    @property
    def mostly(self) -> float:
        """The share of values that must keep it on a day."""
        return float(self.rule.kwargs.get("mostly", 1.0))

    def applies(self, refer: Refer = quoted) -> str:
        """SQL that is true for events that can keep or break it, false for those that it leaves out; never null."""
        short = KNOWN[self.rule.expectation].short
        if short in ("not_null", "null"):
            return "true"
        if "column_A" not in self.rule.kwargs:
            return f"NOT {self._missing(self.rule.kwargs['column'], refer)}"
        first, second = (self._missing(self.rule.kwargs[key], refer) for key in ("column_A", "column_B"))
        left_out = self.rule.kwargs.get("ignore_row_if", "both_values_are_missing")
        if left_out == "neither":
            return "true"
        return f"NOT ({first} {'AND' if left_out == 'both_values_are_missing' else 'OR'} {second})"

    def broken(self, refer: Refer = quoted) -> str:
        """SQL that is true for events that break it, false for all others; never null."""
        return f"({self.applies(refer)} AND NOT {self._condition(refer)})"

    def _condition(self, refer: Refer) -> str:
        """True or false wherever `applies` is true."""
        short, kwargs = KNOWN[self.rule.expectation].short, self.rule.kwargs
        if "column_A" in kwargs:
            return self._pair(refer, short)
        column = kwargs["column"]
        value, kind = refer(column), self.types[column]
        conditions = {
            "not_null": lambda: f"NOT {self._missing(column, refer)}",
            "null": lambda: self._missing(column, refer),
            "between": lambda: _band(value, kwargs, kind),
            "length": lambda: _band(f"length({value})", kwargs, "int"),
            "in_set": lambda: f"{value} IN ({_literals(kwargs, kind)})",
            "not_in_set": lambda: f"{value} NOT IN ({_literals(kwargs, kind)})",
            "matches": lambda: f"{value} RLIKE {text_literal(kwargs['regex'])}",
            "matches_not": lambda: f"NOT {value} RLIKE {text_literal(kwargs['regex'])}",
        }
        return f"({conditions[short]()})"

    def _pair(self, refer: Refer, short: str) -> str:
        first, second = (self.rule.kwargs[key] for key in ("column_A", "column_B"))
        sign = "=" if short == "equals" else ">=" if self.rule.kwargs.get("or_equal") else ">"
        there = f"NOT {self._missing(first, refer)} AND NOT {self._missing(second, refer)}"
        return f"({there} AND {refer(first)} {sign} {refer(second)})"

    def _missing(self, column: str, refer: Refer) -> str:
        name = refer(column)
        return f"({name} IS NULL OR isnan({name}))" if self.types[column] == "double" else f"({name} IS NULL)"


def row_rules(suite: Suite, columns: Mapping[str, str]) -> tuple[RowRule, ...]:
    """The rules of `suite`, which was read with `columns`, ready to be applied."""
    return tuple(RowRule(rule, {column: columns[column] for column in rule.columns}) for rule in suite.rules)


def digest(rules: Iterable[RowRule]) -> str:
    """64 hex digits that change when, and only when, the rules may judge an event otherwise."""
    meaning = [(rule.name, rule.refuses, rule.broken()) for rule in rules]
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()


def _band(value: str, kwargs: Mapping[str, Any], kind: str) -> str:
    if kwargs.get("value") is not None:
        return f"{value} = {_literal(kwargs['value'], kind)}"
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if low is not None and high is not None and not kwargs.get("strict_min") and not kwargs.get("strict_max"):
        return f"{value} BETWEEN {_literal(low, kind)} AND {_literal(high, kind)}"
    parts = []
    if low is not None:
        parts.append(f"{value} {'>' if kwargs.get('strict_min') else '>='} {_literal(low, kind)}")
    if high is not None:
        parts.append(f"{value} {'<' if kwargs.get('strict_max') else '<='} {_literal(high, kind)}")
    return " AND ".join(parts)


def _literals(kwargs: Mapping[str, Any], kind: str) -> str:
    return ", ".join(_literal(value, kind) for value in kwargs["value_set"])


def _literal(value: object, kind: str) -> str:
    if kind == "timestamp":
        at = moment(str(value))
        assert isinstance(at, datetime), "the reader of the suite has made sure"
        return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}+00:00'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    return str(value) if isinstance(value, int) else text_literal(str(value))


def text_literal(value: str) -> str:
    """Write a literal of Spark SQL, in which a backslash escapes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
