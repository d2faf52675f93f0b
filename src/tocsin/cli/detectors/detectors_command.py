"""`tocsin detectors`: what is declared, and how its alerts did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.check_command import open_project
from tocsin.cli.output import counted, line, note, utc, write_list
from tocsin.cli.project import load_project, load_settings, note_left_out, reading_alerts
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import detector_job
from tocsin.declare.model.sizes import entity_text, number, score_text

if TYPE_CHECKING:
    from tocsin.alerts.finding_merging import StoredFinding
    from tocsin.alerts.store.alert_rows import InvalidFinding
    from tocsin.alerts.store.queries import AlertCounts
    from tocsin.cli.json_shapes import DetectorShape, VersionShape


def detectors(json: options.Json = False) -> None:
    """List the detectors: stage, limits, alerts a day, how many were right, tags; and how many have each tag.

    Alerts a day are those of the last 7 days, by level; the precision is the share of true ones among all that people
    gave a verdict. Without the alerts DB these are left out. Exit code 1 when a file is broken.
    """
    (_, catalog), counts = open_project(), _counts()
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
    from tocsin.alerts.store.queries import count_alerts

    try:
        with reading_alerts() as database:
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


COLUMNS = ("DETECTED", "DETECTOR", "ENTITY", "WINDOW", "LEVEL", "SCORE", "LIMIT", "ORIGIN", "ALERT", "FINDING")
_ID_DIGITS = 12


def findings(
    detector: Annotated[str | None, typer.Option(help="Of this detector.")] = None,
    entity: Annotated[str | None, typer.Option(help="About this user, route, ...; the exact value.")] = None,
    since: options.Since = None,
    level: Annotated[options.Level | None, typer.Option(help="Of this level.")] = None,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also findings that a backfill of their day did not reproduce.")
    ] = False,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="List the records of the findings topic that are no findings, and why.")
    ] = False,
    limit: options.Limit = 100,
    json: options.Json = False,
    exit_code: options.FailIfAny = False,
) -> None:
    """List findings, the newest window first. `tocsin explain` tells more about one, by the beginning of its id."""
    if rejected:
        chosen = {"detector": detector, "entity": entity, "since": since, "level": level, "superseded": superseded}
        options.refuse_beside("with --rejected", **chosen)
        _list_rejected(limit, json=json, exit_code=exit_code)
        return
    from tocsin.alerts.backfilled.ledger_follower import list_waiting
    from tocsin.alerts.store.queries import FindingFilter, list_findings

    start = options.since(since)
    wanted = FindingFilter(
        detector=detector, entity=entity, since=start, level=level, superseded=superseded, limit=limit
    )
    with reading_alerts() as database:
        found, waiting = list_findings(database, wanted), list_waiting(load_settings(), database, wanted)
    if waiting:
        note(f"{counted(len(waiting), 'finding')} of backfills without alerts yet: the indexer takes them once it runs")
        known = {stored.finding.finding_id for stored in waiting}
        both = [*waiting, *(stored for stored in found if stored.finding.finding_id not in known)]
        found = sorted(both, key=lambda stored: stored.finding.moment, reverse=True)[:limit]
    write_list(found, COLUMNS, row, json=json, empty="no findings")
    note_left_out(found, limit, detector)
    if exit_code and found:
        raise typer.Exit(1)


def _list_rejected(limit: int, *, json: bool, exit_code: bool) -> None:
    from tocsin.alerts.store.queries import list_invalid

    with reading_alerts() as database:
        found = list_invalid(database, limit)
    columns = ("SEEN", "TOPIC", "PARTITION", "OFFSET", "BYTES", "REASONS")
    write_list(found, columns, _rejected_row, json=json, empty="no rejected findings")
    if exit_code and found:
        raise typer.Exit(1)


def _rejected_row(rejected: InvalidFinding) -> tuple[object, ...]:
    place = (rejected.topic, rejected.partition, rejected.offset)
    return (utc(rejected.seen_at), *place, rejected.size, "; ".join(rejected.reasons))


def row(stored: StoredFinding) -> tuple[object, ...]:
    """One finding as a row of the table."""
    found = stored.finding
    score = score_text(found.score, at_least=found.at_least, limit=found.limit)
    where = (found.detector, entity_text(found.entity), window(stored))
    origin = f"{found.origin}, superseded" if stored.superseded_at else found.origin
    return (utc(stored.first_detected_at), *where, found.level, score, number(found.limit), origin, stored.alert,
            found.finding_id[:_ID_DIGITS])  # fmt: skip


def window(stored: StoredFinding) -> str:
    """The window of a finding, or the time of its event."""
    start, end = stored.finding.window_start, stored.finding.window_end
    if start is None or end is None:
        return utc(stored.finding.event_time_max)
    return f"{utc(start)} +{(end - start).total_seconds():g} s"


_Detector = Annotated[str, typer.Argument(help="Its name.")]


def list_versions(name: str, *, json: bool) -> None:
    """List the versions of a detector or flow that ran here, in the order of first runs."""
    from tocsin.cli.json_shapes import VersionShape
    from tocsin.platform.code_versions import kept_file, kept_versions

    settings, catalog = load_project()
    job = catalog.versioned_job(name)
    current = catalog.version_of(job)
    found = [
        VersionShape(
            **version.model_dump(),
            in_force=version.version == current,
            file=str(kept_file(settings, job, version.version)),
        )
        for version in kept_versions(settings, job)
    ]
    columns = ("VERSION", "FIRST RAN", "STARTED LAST", "CHECKPOINT", "COPY", "NOTE")
    write_list(found, columns, _version_row, json=json, empty=f"no version of {name} has run here yet")


def _version_row(version: VersionShape) -> tuple[object, ...]:
    note = "in the file" if version.in_force else None
    return (version.version, utc(version.first_at), utc(version.last_at), version.fingerprint, version.file, note)


def skip_backlog(detector: _Detector) -> None:
    """Let a detector skip all events that it has not read yet.

    A running job does so within seconds, another one at its next start. The gap is recorded in `gaps.json` beside its
    checkpoint, for a backfill; windows that had begun by then are not reported.
    """
    from tocsin.spark.query import gaps

    settings, catalog = load_project()
    job = detector_job(catalog.detector(detector).name)
    gaps.ask_to_skip(settings.checkpoint(job))
    line(f"{job} will skip its backlog: within seconds if it runs, else at its next start")
