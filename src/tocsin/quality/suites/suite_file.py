"""Read `expectations/<source>.<stage>.json`: all faults at once, each with line, rule and the nearest valid name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.quality.suites.arguments import Place, check_argument
from tocsin.quality.suites.expectations import KNOWN, TOLD, KnownExpectation, arguments_at, possible_at
from tocsin.quality.suites.parameters import Wrong
from tocsin.quality.suites.suite import Rule, Suite
from tocsin.quality.verdict import CheckStage, Severity

_SUITE_KEYS = ("name", "expectations", "meta", "notes", "id")
_RULE_KEYS = ("type", "kwargs", "severity", "meta", "description", "notes", "id")
_META_KEYS = ("name",)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True)
class Scope:
    """The columns and parameters that the rules of a suite may name.

    Attributes:
        source, stage: whose suite it is, and where it runs.
        columns: names and types.
        parameters: names and types; empty where none can be filled in.
    """

    source: str
    stage: CheckStage
    columns: Mapping[str, str]
    parameters: Mapping[str, str] = field(default_factory=dict)


def read_suite(path: Path, scope: Scope) -> Suite:
    """The suite in `path`.

    Raises:
        ConfigError: with every fault of the file. A retry does not help.
    """
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text, parse_constant=_refuse)
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError.one(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except ValueError as error:  # not UTF-8, or a constant
        raise ConfigError.one(path, f"is not JSON: {error}") from error
    reader = _Reader(path, text, scope)
    rules = reader.read(table)
    half = reader.half(table)
    if reader.faults:
        raise ConfigError(sorted(reader.faults, key=lambda fault: fault.line or 0))
    return Suite(scope.source, scope.stage, path, rules, half)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


class _Reader:
    """Reads one suite and gathers every fault on the way."""

    def __init__(self, path: Path, text: str, scope: Scope) -> None:
        self.path, self.scope = path, scope
        self.faults: list[Fault] = []
        # Where an expectation begins is where its type stands, or near it.
        self._lines = [text.count("\n", 0, found.start()) + 1 for found in re.finditer(r'"type"\s*:', text)]

    def fault(self, what: str, *, key: str | None = None, line: int | None = None, near: str | None = None) -> None:
        self.faults.append(Fault(str(self.path), what, key=key, line=line, nearest=near))

    def read(self, table: object) -> tuple[Rule, ...]:
        if not isinstance(table, dict) or not isinstance(table.get("expectations"), list):
            self.fault('must be an object with a "name" and a list of "expectations"')
            return ()
        for key in table:
            if key not in _SUITE_KEYS:
                self.fault("is not a key of a suite", key=key, near=nearest(key, _SUITE_KEYS))
        if table.get("name") != self.path.stem:
            self.fault(f"must be '{self.path.stem}', as the file, not {table.get('name')!r}", key="name")
        entries = table["expectations"]
        exact = len(self._lines) == len(entries)
        read = [self._rule(entry, number, exact) for number, entry in enumerate(entries)]
        rules = [(rule, line) for rule, line in read if rule is not None]
        self._tell_apart(rules)
        return tuple(rule for rule, _ in rules)

    def half(self, table: object) -> Severity:
        """Read `meta.drift`; other keys of this `meta` are Great Expectations' own."""
        meta = table.get("meta") if isinstance(table, dict) else None
        value = meta.get("drift", Severity.CRITICAL) if isinstance(meta, dict) else Severity.CRITICAL
        if value not in list(_SEVERITIES):
            self.fault(f"must be critical, warning or info, not {value!r}", key="meta.drift")
        elif value != Severity.CRITICAL and self.scope.stage is not CheckStage.DAY:
            self.fault("belongs to the suite for the day", key="meta.drift")
        else:
            return Severity(value)
        return Severity.CRITICAL

    def _tell_apart(self, rules: list[tuple[Rule, int | None]]) -> None:
        counts = Counter(rule.name for rule, _ in rules)
        for rule, line in rules:
            if counts[rule.name] > 1:
                self.fault(f'is the name of {counts[rule.name]} rules; give each a "meta": {{"name": "..."}}',
                           key=rule.name, line=line)  # fmt: skip

    def _rule(self, entry: object, number: int, exact: bool) -> tuple[Rule | None, int | None]:
        line = self._lines[number] if exact else None
        where = f"expectations[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            self.fault('must be an object with a "type", such as expect_column_values_to_not_be_null', key=where)
            return None, line
        for key in entry:
            if key not in _RULE_KEYS:
                self.fault("is not a key of an expectation", key=f"{where}.{key}", line=line,
                           near=nearest(key, _RULE_KEYS))  # fmt: skip
        known = self._known(entry["type"], where, line)
        kwargs = entry.get("kwargs")
        if not isinstance(kwargs, dict):
            self.fault('must be an object, such as {"column": "user_id"}', key=f"{where}.kwargs", line=line)
            return None, line
        severity = self._severity(entry, where, line)
        if known is None or not self._good_arguments(known, kwargs, f"{where}.kwargs", line):
            return None, line
        name = self._name(entry, known, kwargs, (where, line))
        return Rule(name, entry["type"], kwargs, severity, self._meaning(entry, where, line)), line

    def _known(self, name: str, where: str, line: int | None) -> KnownExpectation | None:
        key, stage = f"{where}.type", self.scope.stage
        if name in TOLD:
            self.fault(f"{name} is not needed: {TOLD[name]}", key=key, line=line)
        elif name not in KNOWN:
            self.fault(f"'{name}' is not an expectation that is possible here (docs/quality.md lists them)",
                       key=key, line=line, near=nearest(name, possible_at(stage)))  # fmt: skip
        elif stage not in KNOWN[name].stages:
            self.fault(f"{name} is not possible in a suite of stage {stage}; it needs all rows at once",
                       key=key, line=line)  # fmt: skip
        else:
            return KNOWN[name]
        return None

    def _severity(self, entry: dict[str, Any], where: str, line: int | None) -> Severity:
        value = entry.get("severity", "critical")
        if value in list(_SEVERITIES):
            return Severity(value)
        near = nearest(value, _SEVERITIES) if isinstance(value, str) else None
        self.fault(f"must be critical, warning or info, not {value!r}", key=f"{where}.severity", line=line, near=near)
        return Severity.CRITICAL

    def _good_arguments(self, known: KnownExpectation, kwargs: dict[str, Any], where: str, line: int | None) -> bool:
        before, taken = len(self.faults), arguments_at(self.scope.stage, known)
        for key in known.needed.keys() - kwargs.keys():
            self.fault("is missing", key=f"{where}.{key}", line=line)
        if known.one_of and not any(kwargs.get(key) is not None for key in known.one_of):
            self.fault(f"needs {' or '.join(known.one_of)}", key=where, line=line)
        place = Place(self.scope.stage, self.scope.columns, self.scope.parameters, known, kwargs)
        for key, value in kwargs.items():
            if key not in taken:
                what = "means nothing on the profile, which has one row" if key in known.arguments else (
                    "is not an argument of this expectation")  # fmt: skip
                self.fault(what, key=f"{where}.{key}", line=line, near=nearest(key, taken))
            elif value is not None or key in known.needed:
                try:
                    check_argument(place, key, value)
                except Wrong as wrong:
                    self.fault(wrong.what, key=f"{where}.{key}", line=line, near=wrong.near)
        return len(self.faults) == before

    def _name(
        self, entry: dict[str, Any], known: KnownExpectation, kwargs: dict[str, Any], place: tuple[str, int | None]
    ) -> str:
        (where, line), meta = place, entry.get("meta") or {}
        if not isinstance(meta, dict):
            self.fault('must be an object, such as {"name": "known_action"}', key=f"{where}.meta", line=line)
            meta = {}
        for key in meta:
            if key not in _META_KEYS:
                self.fault("is not a key of meta", key=f"{where}.meta.{key}", line=line, near=nearest(key, _META_KEYS))
        name = meta.get("name", _default_name(known, kwargs))
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.fault(f"must be small letters, digits and _, a letter first, 64 at most, not {name!r}",
                       key=f"{where}.meta.name", line=line)  # fmt: skip
        return str(name)

    def _meaning(self, entry: dict[str, Any], where: str, line: int | None) -> str:
        for key in ("description", "notes"):
            value = entry.get(key)
            if value is not None and not isinstance(value, str):
                self.fault(f"must be a text, not {value!r}", key=f"{where}.{key}", line=line)
        return str(entry.get("description") or entry.get("notes") or "").strip()


def _default_name(known: KnownExpectation, kwargs: dict[str, Any]) -> str:
    """`action_in_set`: the column, and what is expected of it."""
    columns = [kwargs.get("column") or kwargs.get("column_A"), *kwargs.get("column_list", [])[:1]]
    parts = [*[column for column in columns if column], known.short]
    parts += [kwargs["column_B"]] if "column_B" in kwargs else []
    return re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")[:64]
