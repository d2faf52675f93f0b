"""Read what is known about the entities of a detector: a file of incidents, and the verdicts given on alerts."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tocsin.alerts.alert_policy import dedup_key
from tocsin.alerts.evaluation.scoring import Label
from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import canonical_entity
from tocsin.declare.settings import Settings

_TIMES = ("from", "to")
_MOST = 100_000
_INSTANT = timedelta(microseconds=1)


def read_incidents(path: Path, spec: DetectorSpec) -> list[Label]:
    """Read the CSV of incidents at `path`: the columns `from` and `to`, in UTC unless they say otherwise, and who.

    Who it is, is in the columns by which `spec` tells alerts apart; or in `entity`, as the value of a single one, or as
    JSON such as {"user_id": "ann", "host": "web.1"}.

    Raises:
        ConfigError: the file cannot be read, holds no incident, or a line of it is wrong; a retry does not help.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            lacking = [name for name in _TIMES if name not in (rows.fieldnames or ())]
            if lacking or not {"entity", *_who(spec)} & {*(rows.fieldnames or ())}:
                what = f"its first line must name the columns entity (or {', '.join(_who(spec))}), from and to"
                raise ConfigError.one(path, f"{what}, not {', '.join(rows.fieldnames or ['nothing'])}", line=1)
            labels = [_label(path, rows.line_num, row, spec) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError.one(
            path, f"cannot be read as CSV in UTF-8: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not labels:
        raise ConfigError.one(path, "holds no incident, only the names of columns")
    return labels


def read_verdicts(settings: Settings, spec: DetectorSpec) -> list[Label]:
    """Read the verdicts given on alerts of `spec`: `true` is an incident; `expected` and `false` are none.

    TransientError if the alerts DB cannot be read now; a retry helps.
    """
    room = _INSTANT if spec.window is None else timedelta(0)  # an event has no length, and a label needs one
    with closing(open_store(settings)) as database:
        alerts = list_alerts(database, AlertFilter(detector=spec.name, state="resolved", limit=_MOST))
    return [
        Label(canonical_entity(alert.entity), alert.first_seen, alert.last_seen + room, alert.verdict == "true")
        for alert in alerts
        if alert.verdict
    ]


def beside(incidents: Iterable[Label], verdicts: Iterable[Label]) -> list[Label]:
    """Leave out the verdicts that an alert was right about one of the `incidents`, which would else count twice."""
    known: dict[str, list[Label]] = defaultdict(list)
    for incident in incidents:
        known[incident.key].append(incident)
    return [
        verdict
        for verdict in verdicts
        if not verdict.is_real
        or not any(one.start < verdict.end and verdict.start < one.end for one in known[verdict.key])
    ]


def _who(spec: DetectorSpec) -> tuple[str, ...]:
    return spec.dedup or spec.entity


def _label(path: Path, line: int, row: Mapping[str, str | None], spec: DetectorSpec) -> Label:
    def refuse(what: str) -> ConfigError:
        return ConfigError.one(path, what, line=line)

    if any(value is None for value in row.values()) or None in row:
        raise refuse("has other columns than the first line names")
    times = []
    for name in _TIMES:
        try:
            moment = datetime.fromisoformat(str(row[name]).strip())
        except ValueError:
            raise refuse(f"{name}: '{row[name]}' is no time; write 2026-01-31T14:05:00Z") from None
        times.append(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    start, end = times
    if end <= start:
        raise refuse(f"from: {row['from']} is not before to: {row['to']}")
    entity = _entity(row, spec)
    if lacking := [name for name in _who(spec) if not entity.get(name)]:
        raise refuse(f"does not say which {', '.join(lacking)}")
    return Label(dedup_key(entity, spec), start, end)


def _entity(row: Mapping[str, str | None], spec: DetectorSpec) -> dict[str, str]:
    """Read who it is; empty if that cannot be told."""
    who, text = _who(spec), row.get("entity") or ""
    if "entity" not in row or "entity" in who:
        return {name: row.get(name) or "" for name in who}
    if len(who) == 1 and not text.startswith("{"):
        return {who[0]: text}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {name: str(found[name]) for name in who if name in found} if isinstance(found, dict) else {}
