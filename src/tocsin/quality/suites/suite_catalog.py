"""All suites of a project: what is expected of each source, at each stage."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import Source
from tocsin.quality.day_profile import figure_types
from tocsin.quality.suites.arguments import Scope
from tocsin.quality.suites.parameters import DAY_HOURS, TIMES, usual
from tocsin.quality.suites.row_rules import RowRule, row_rules
from tocsin.quality.suites.suite import FILES, Suite
from tocsin.quality.suites.suite_file import read_suite
from tocsin.quality.verdict import CheckStage

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
