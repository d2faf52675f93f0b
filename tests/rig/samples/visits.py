"""A small source, suites for it, and profiles of its days."""

import json
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.source import Format, Source
from tocsin.quality.day_profile import HOURS, Figure, Profile, bounds
from tocsin.quality.suites.suite_catalog import read_suites

DAY = date(2026, 11, 21)

VISITS = Source(
    name="visits",
    title="Visits of the web shop",
    owner="shop@example.com",
    formats=(Format.JSON,),
    key="visitor",
    event_time="at",
    columns={
        "visitor": "string",
        "at": "timestamp",
        "amount": "double",
        "tries": "int",
        "big": "bigint",
        "ok": "boolean",
    }
    | {"page": "string", "until": "timestamp"},
    optional=frozenset(("amount", "tries", "big", "ok", "page", "until")),
)


def expect(kind: str, severity: str = "critical", name: str | None = None, **kwargs: Any) -> dict[str, Any]:
    """One entry of a suite; `kind` without `expect_`."""
    entry: dict[str, Any] = {"type": f"expect_{kind}", "kwargs": kwargs, "severity": severity}
    return entry if name is None else entry | {"meta": {"name": name}}


def write(project: Path, stage: str, *entries: Any, **others: Any) -> Path:
    path = project / "expectations" / f"visits.{stage}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"name": path.stem, "expectations": list(entries)} | others, indent=1))
    return path


def faults(project: Path) -> list[Fault]:
    """Everything that is wrong with the suites of VISITS."""
    try:
        read_suites(project, VISITS)
    except ConfigError as error:
        return list(error.faults)
    return []


def profile(day: date = DAY, rows: int = 2400, **figures: Figure) -> Profile:
    """The profile of a day of which every hour is like the others; `__` stands for the dot in names of figures."""
    named = {name.replace("__", "."): value for name, value in figures.items()}
    whole: dict[str, Figure] = {"rows": rows, "completeness": 1.0, "hours": 24, "page.null_ratio": 0.25}
    whole |= {"last_event": datetime.combine(day, time(23, 59), bounds(day)[0].tzinfo)}
    return Profile(source="visits", day=day, version="v1", figures=whole | dict.fromkeys(HOURS, rows // 24) | named)
