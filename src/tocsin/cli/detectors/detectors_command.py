"""`tocsin detectors`: what is declared, and how its alerts did."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from tocsin.cli import options
from tocsin.cli.detectors.check_command import project_catalog
from tocsin.cli.output import line, note, write_list
from tocsin.declare.model.sizes import number

if TYPE_CHECKING:
    from tocsin.alerts.store.queries import AlertCounts
    from tocsin.cli.json_shapes import DetectorShape
    from tocsin.declare.model.detector import DetectorSpec


def detectors(json: options.Json = False) -> None:
    """List the detectors: stage, limits, alerts a day, how many were right, tags; and how many have each tag.

    Alerts a day are those of the last 7 days, by level; the precision is the share of true ones among all that people
    gave a verdict. Without the alerts DB these are left out. Exit code 1 when a file is broken.
    """
    catalog, counts = project_catalog(), _counts()
    shown = [_shape(spec, counts) for spec in catalog.detectors.values()]
    columns = ("DETECTOR", "STAGE", "SOURCE", "EMAIL >", "URGENT >", "EMAIL/DAY", "URGENT/DAY", "PRECISION", "TAGS",
               "OWNER", "WHAT")  # fmt: skip
    empty = "no detectors; write detectors/<name>.py (docs/write/tutorial.md shows how)"
    write_list(shown, columns, _row, json=json, empty=empty)
    tags = Counter(tag for detector in shown for tag in detector.tags)
    if tags and not json:
        line(f"\ntags: {', '.join(f'{tag} {count}' for tag, count in sorted(tags.items()))}")
    if catalog.broken:
        if not json:
            line("some files are broken; run: tocsin check", style="yellow")
        raise typer.Exit(1)


def _counts() -> dict[str, AlertCounts] | None:
    from tocsin.alerts.store.queries import count_alerts, open_store
    from tocsin.declare.model.errors import TransientError
    from tocsin.declare.settings import load_settings

    try:
        with closing(open_store(load_settings())) as database:
            return count_alerts(database)
    except TransientError as error:
        note(f"{error}; alerts are not counted", style="yellow")
        return None


def _row(shown: DetectorShape) -> tuple[object, ...]:
    from tocsin.alerts.store.queries import COUNTED_DAYS

    limits = (limit if limit is None else number(limit) for limit in (shown.email, shown.urgent))
    counts = shown.alerts
    a_day = (number(count / COUNTED_DAYS) for count in (counts.email, counts.urgent)) if counts else (None, None)
    about = (counts.precision_text if counts else None, ", ".join(shown.tags), shown.owner, shown.title)
    return (shown.name, shown.stage, shown.source, *limits, *a_day, *about)


def _shape(spec: DetectorSpec, counts: dict[str, AlertCounts] | None) -> DetectorShape:
    from tocsin.alerts.store.queries import AlertCounts
    from tocsin.cli.json_shapes import DetectorShape

    derived = {
        "source": ", ".join(spec.sources),
        "window_seconds": spec.window.total_seconds() if spec.window else None,
        "email": spec.levels.email,
        "urgent": spec.levels.urgent,
        "memory_bytes": spec.memory,
        "path": str(spec.path),
        "alerts": None if counts is None else counts.get(spec.name, AlertCounts()),
    }
    return DetectorShape(**vars(spec) | derived)
