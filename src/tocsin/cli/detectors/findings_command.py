"""`tocsin findings`: what the detectors found, and records of their topic that are no findings."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import counted, note, utc, write_list
from tocsin.declare.model.sizes import entity_text, number, score_text

if TYPE_CHECKING:
    from tocsin.alerts.finding_merging import StoredFinding
    from tocsin.alerts.store.alert_rows import InvalidFinding

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
        _list_rejected(limit, json=json, exit_code=exit_code)
        return
    from tocsin.alerts.backfilled.ledger_follower import list_waiting
    from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
    from tocsin.declare.settings import load_settings

    start = options.since(since)
    wanted = FindingFilter(
        detector=detector, entity=entity, since=start, level=level, superseded=superseded, limit=limit
    )
    settings = load_settings()
    with closing(open_store(settings)) as database:
        found, waiting = list_findings(database, wanted), list_waiting(settings, database, wanted)
    if waiting:
        note(f"{counted(len(waiting), 'finding')} of backfills without alerts yet: the indexer takes them once it runs")
        known = {stored.finding.finding_id for stored in waiting}
        both = [*waiting, *(stored for stored in found if stored.finding.finding_id not in known)]
        found = sorted(both, key=lambda stored: stored.finding.moment, reverse=True)[:limit]
    write_list(found, COLUMNS, row, json=json, empty="no findings")
    if exit_code and found:
        raise typer.Exit(1)


def _list_rejected(limit: int, *, json: bool, exit_code: bool) -> None:
    from tocsin.alerts.store.queries import list_invalid, open_store
    from tocsin.declare.settings import load_settings

    with closing(open_store(load_settings())) as database:
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
    score = score_text(found.score, at_least=found.at_least)
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
