"""All suites of a project: what is expected of each source, at each stage."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import Source
from tocsin.declare.validation import faults_of
from tocsin.quality.day_profile import figure_types
from tocsin.quality.suites.arguments import Place, Scope, check_argument
from tocsin.quality.suites.expectations import KNOWN, TOLD, KnownExpectation, arguments_at, possible_at
from tocsin.quality.suites.row_rules import RowRule, row_rules
from tocsin.quality.suites.suite import DAY_HOURS, FILES, TIMES, Rule, Suite, Wrong, usual
from tocsin.quality.verdict import CheckStage, Severity

FOLDER = "expectations"

FINDING_COLUMNS = {
    "finding_id": "string",
    "detector": "string",
    "version": "string",
    "entity": "string",
    "window_start": "timestamp",
    "window_end": "timestamp",
    "level": "string",
    "score": "double",
    "limit": "double",
    "at_least": "boolean",
    "event_time_max": "timestamp",
}
"""Columns of the table of findings that rules are about; `entity` is JSON."""

FINDING_PARAMETERS = TIMES | {"usual_findings": "double", "most_findings": "double", "days_known": "double"}
"""Midnights of the day; median and greatest number of findings of the last 28 days, and how many of these are known."""

_ENVELOPE = {"event_time": "timestamp", "ingested_at": "timestamp"}


@dataclass(frozen=True)
class Suites:
    """The suites of one source; a stage without a file has no rules."""

    rows: tuple[RowRule, ...]
    day: Suite
    findings: Suite


def row_columns(source: Source) -> dict[str, str]:
    """Names and types of what rules for rows may name: the declared columns, event_time and ingested_at."""
    return source.columns | _ENVELOPE


def read_row_rules(project: Path, source: Source) -> tuple[RowRule, ...]:
    """Read the rules for single events of `source`, from `expectations/<source>.rows.json`; none without the file.

    ConfigError with every fault of the file; a retry does not help.
    """
    columns = row_columns(source)
    return row_rules(_read(project, Scope(source.name, CheckStage.ROW, columns)), columns)


def read_suites(project: Path, source: Source) -> Suites:
    """Read all that is expected of `source`; ConfigError with every fault of its files; a retry does not help."""
    faults: list[Fault] = []
    rules: tuple[RowRule, ...] = ()
    try:
        rules = read_row_rules(project, source)
    except ConfigError as error:
        faults += error.faults
    figures = figure_types(source, rules)
    parameters = TIMES | {DAY_HOURS: "double"}
    parameters |= {usual(name): "double" for name, kind in figures.items() if kind != "timestamp"}
    scopes = (
        Scope(source.name, CheckStage.DAY, figures, parameters),
        Scope(source.name, CheckStage.FINDING, FINDING_COLUMNS, FINDING_PARAMETERS),
    )
    suites = []
    for scope in scopes:
        try:
            suites.append(_read(project, scope))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    return Suites(rules, *suites)


def rules_digest(project: Path, source: str, *stages: str) -> str:
    """Return 12 hex digits that change when a suite of `source` for one of `stages` (see FILES) does."""
    paths = [project / FOLDER / f"{source}.{stage}.json" for stage in stages]
    content = b"\n".join(path.read_bytes() if path.is_file() else b"" for path in paths)
    return hashlib.sha256(content).hexdigest()[:12]


def faults_of_suites(project: Path, sources: Mapping[str, Source], broken: Collection[str] = ()) -> list[Fault]:
    """List everything that is wrong in `expectations/` of `project`; `sources` are by name.

    Of sources in `broken`, whose own files are broken, nothing can be told.
    """
    faults: list[Fault] = []
    for path in sorted((project / FOLDER).glob("*")):
        source, _, stage = path.name.removesuffix(".json").rpartition(".")
        where = str(path)
        if path.name.startswith(".") or source in broken:
            continue
        if path.suffix != ".json" or stage not in FILES:
            ends = ", ".join(f"<source>.{name}.json" for name in FILES)
            faults.append(Fault(where, f"is not a suite; suites end in {ends}", nearest=nearest(stage, FILES)))
        elif source not in sources:
            what = (
                f"there is no source '{source}'; if you have removed it, remove this file too (docs/write/sources.md)"
            )
            faults.append(Fault(where, what, nearest=nearest(source, sources)))
    for one in sources.values():
        try:
            read_suites(project, one)
        except ConfigError as error:
            faults += error.faults
    return faults


def _read(project: Path, scope: Scope) -> Suite:
    path = project / FOLDER / f"{scope.suite}.json"
    return read_suite(path, scope) if path.is_file() else Suite(scope.source, scope.stage)


_Severity = Literal["critical", "warning", "info"]
_Optional = BeforeValidator(lambda value: {} if value is None else value)


def _name(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_]{0,63}", name):
        raise ValueError(f"must be small letters, digits and _, a letter first, 64 at most, not {name!r}")
    return name


class _RuleMeta(BaseModel, extra="forbid"):
    name: Annotated[str, AfterValidator(_name)] = ""


class _Expectation(BaseModel, extra="forbid"):
    """The keys of an expectation; their meaning is that of the attributes of `Rule`."""

    type: str
    kwargs: dict[str, Any]
    severity: _Severity = "critical"
    meta: Annotated[_RuleMeta, _Optional] = _RuleMeta()
    description: str | None = None
    notes: str | None = None
    id: Any = None

    @field_validator("type")
    @classmethod
    def _possible_here(cls, name: str, info: ValidationInfo[Scope]) -> str:
        stage = info.context.stage
        if name in TOLD:
            raise Wrong(f"{name} is not needed: {TOLD[name]}")
        if name not in KNOWN:
            what = f"'{name}' is not an expectation supported here (docs/write/quality.md lists them)"
            raise Wrong(what, nearest(name, possible_at(stage)))
        if stage not in KNOWN[name].stages:
            raise Wrong(f"{name} cannot be used in a suite of stage {stage}; it needs all rows at once")
        return name

    def rule(self) -> Rule:
        name = self.meta.name or _default_name(KNOWN[self.type], self.kwargs)
        meaning = (self.description or self.notes or "").strip()
        kwargs = {key: value for key, value in self.kwargs.items() if value is not None}  # null is as if left out
        return Rule(name, self.type, kwargs, Severity(self.severity), meaning)


class _SuiteMeta(BaseModel):
    """Other keys of this `meta` are Great Expectations' own."""

    drift: _Severity = "critical"

    @field_validator("drift")
    @classmethod
    def _of_the_day(cls, drift: _Severity, info: ValidationInfo[Scope]) -> _Severity:
        if drift != "critical" and info.context.stage is not CheckStage.DAY:
            raise ValueError("belongs to the suite for the day")
        return drift


class _SuiteFile(BaseModel, extra="forbid"):
    name: str
    expectations: list[_Expectation]
    meta: Annotated[_SuiteMeta, _Optional] = _SuiteMeta()
    notes: Any = None
    id: Any = None

    @field_validator("name")
    @classmethod
    def _as_the_file(cls, name: str, info: ValidationInfo[Scope]) -> str:
        if name != info.context.suite:
            raise ValueError(f"must be '{info.context.suite}', as the file, not {name!r}")
        return name


def read_suite(path: Path, scope: Scope) -> Suite:
    """Read the suite in `path`; ConfigError with every fault of the file. A retry does not help."""
    text, table = _json_in(path)
    entries = table.get("expectations") if isinstance(table, dict) else None
    entries = entries if isinstance(entries, list) else []
    # Where an expectation begins is where its type stands, or near it.
    lines = [text.count("\n", 0, found.start()) + 1 for found in re.finditer(r'"type"\s*:', text)]

    def line(key: str) -> int | None:
        number = re.match(r"expectations\[(\d+)\]", key)
        return lines[int(number[1])] if number and len(lines) == len(entries) else None

    wrong = {
        f"expectations[{number}]{key}": fault
        for number, entry in enumerate(entries)
        for key, fault in _wrong_arguments(entry, scope)
    }
    faults = [Fault(str(path), fault.what, key, line(key), fault.near) for key, fault in wrong.items()]
    try:
        suite = _SuiteFile.model_validate(table, context=scope)
    except ValidationError as error:
        faults += faults_of(error, path, _SuiteFile, "a key of a suite", line)
    rules = () if faults else tuple(each.rule() for each in suite.expectations)
    names = Counter(rule.name for rule in rules)
    for number, name in enumerate(rule.name for rule in rules):
        if names[name] > 1:
            what = f'is the name of {names[name]} rules; give each a "meta": {{"name": "..."}}'
            faults.append(Fault(str(path), what, name, line(f"expectations[{number}]")))
    if faults:
        raise ConfigError(sorted(faults, key=lambda fault: fault.line or 0))
    return Suite(scope.source, scope.stage, path, rules, Severity(suite.meta.drift))


def _json_in(path: Path) -> tuple[str, Any]:
    """Read a file: its text, and what that says as JSON."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, json.loads(text, parse_constant=_refuse, parse_int=_whole, object_pairs_hook=_each_once)
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError.one(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except ValueError as error:  # not UTF-8, or refused below
        raise ConfigError.one(path, f"cannot be read: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:  # Spark's literals end at 38 digits, floats at 308
        raise ValueError(f"{text[:20]}... has more than 64 bits; write a number such as 1e30")
    return int(text)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f'"{twice[0]}" is written twice in one object; the first would be lost')
    return dict(pairs)


def _wrong_arguments(entry: object, scope: Scope) -> Iterator[tuple[str, Wrong]]:
    """Yield what is wrong with the arguments of an expectation that is possible, each behind its key."""
    match entry:
        case {"type": str(kind), "kwargs": dict(kwargs)} if kind in possible_at(scope.stage):
            known, taken = KNOWN[kind], arguments_at(scope.stage, KNOWN[kind])
        case _:
            return
    for key in known.needed.keys() - kwargs.keys():
        yield f".kwargs.{key}", Wrong("is missing")
    if known.one_of and not any(kwargs.get(key) is not None for key in known.one_of):
        yield ".kwargs", Wrong(f"needs {' or '.join(known.one_of)}")
    for key, value in kwargs.items():
        try:
            if key not in taken and key in known.arguments:
                raise Wrong("has no effect on the profile, which has one row")
            if key not in taken:
                raise Wrong("is not an argument of this expectation", nearest(key, taken))
            if value is not None or key in known.needed:
                check_argument(Place(scope, known, kwargs), key, value)
        except Wrong as wrong:
            yield f".kwargs.{key}", wrong


def _default_name(expectation: KnownExpectation, kwargs: dict[str, Any]) -> str:
    """`action_in_set`: the column, and what is expected of it."""
    columns = [kwargs.get("column") or kwargs.get("column_A"), *kwargs.get("column_list", [])[:1]]
    parts = [*[column for column in columns if column], expectation.short]
    parts += [kwargs["column_B"]] if "column_B" in kwargs else []
    return re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).lstrip("_0123456789").rstrip("_")[:64]
