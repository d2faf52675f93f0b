"""A backfilled day on its way into `findings`: staged as it will be, shown at once, then merged.

No transaction grows with the day, because a long one stops every other writer of a SQLite file. `staged_findings` holds
the rows of one day at a time. Readers see them in place of those in `findings` as soon as `backfilled_days` names their
run, so nobody sees half a day.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    delete,
    exists,
    insert,
    or_,
    select,
    union_all,
    update,
)

from tocsin.alerts import finding_merging
from tocsin.alerts.recording import Recorded, Rules, record
from tocsin.alerts.store.alert_rows import finding_values, stored_finding
from tocsin.alerts.store.schema import backfilled_days, findings, staged_findings
from tocsin.declare.model.finding import Finding
from tocsin.history.places import begin, end

CHUNK = 500
"""Rows of one transaction: some 0.2 s on SQLite."""

_COLUMNS = tuple(findings.c.keys())
_staged = staged_findings.c


@dataclass(frozen=True)
class StagedDay:
    """The backfill of a day that is staged.

    Attributes:
        declared: the version that is declared now; None when the detector was never declared here.
    """

    detector: str
    day: date
    run: str
    run_id: str
    version: str
    declared: str | None


def visible(connection: Connection) -> FromClause:
    """`findings` as readers see them: a day that is being merged counts whole."""
    if connection.execute(select(_staged.position).where(_is_shown()).limit(1)).first() is None:
        return findings
    hidden = exists().where(_staged.finding_id == findings.c.finding_id)
    shown = select(*(_staged[name] for name in _COLUMNS))
    return union_all(select(findings).where(~hidden), shown).subquery()


def discard(connection: Connection) -> int:
    """Remove a chunk of what was staged and is not shown; how many rows that were."""
    chunk = select(_staged.position).where(~_is_shown()).order_by(_staged.position).limit(CHUNK)
    return connection.execute(delete(staged_findings).where(_staged.position.in_(chunk))).rowcount


def stage(connection: Connection, staged: StagedDay, part: Sequence[Finding], now: datetime) -> None:
    """Stage published findings, each merged with what the stream has said of it."""
    known = _rows(connection, [finding.finding_id for finding in part])
    rows = []
    for finding in part:
        row = known.get(finding.finding_id)
        if row is None:
            stored = finding_merging.first(finding, staged.declared, None, now)
        else:
            stored = finding_merging.after(stored_finding(row), finding, staged.declared, None)
        rows.append(finding_values(stored) | {"published": finding.model_dump_json(exclude_none=True)})
    own = {"day": staged.day, "run": staged.run}
    connection.execute(insert(staged_findings), [row | own for row in rows])


def gone(connection: Connection, staged: StagedDay) -> list[str]:
    """The findings of the day that count, are not staged, and are for the backfill to supersede."""
    table = findings.c
    counting = select(table.finding_id).where(
        table.detector == staged.detector,
        table.moment >= begin(staged.day),
        table.moment < end(staged.day),
        *_may_be_superseded(staged.version, staged.declared),
        ~exists().where(_staged.finding_id == table.finding_id),
    )
    return list(connection.execute(counting.order_by(table.moment)).scalars())


def stage_superseded(connection: Connection, staged: StagedDay, ids: Sequence[str], now: datetime) -> None:
    """Stage findings of `ids` as superseded."""
    mark = {"superseded_at": now, "superseded_by": staged.run_id, "published": None}
    rows = [dict(row) | mark for row in _rows(connection, ids).values()]
    own = {"day": staged.day, "run": staged.run}
    connection.execute(insert(staged_findings), [row | own for row in rows])


def merge(connection: Connection, rules: Rules, now: datetime, size: int = CHUNK) -> tuple[Recorded, int]:
    """Bring the next rows that are shown into `findings`, with all that follows from them; also return how many."""
    chunk = select(staged_findings).where(_is_shown()).order_by(_staged.position).limit(size)
    rows = connection.execute(chunk).mappings().all()
    if not rows:
        return Recorded(), 0
    published = [Finding.model_validate_json(row["published"]) for row in rows if row["published"] is not None]
    recorded = record(connection, published, rules, now)
    ids = [row["finding_id"] for row in rows if row["published"] is None]
    if ids:
        recorded.superseded = _supersede(connection, rows[0]["detector"], rows[0]["day"], rules, ids)
    connection.execute(delete(staged_findings).where(_staged.position.in_([row["position"] for row in rows])))
    return recorded, len(rows)


def drop_next(connection: Connection) -> str:
    """Remove the next row that is shown, because it cannot be merged; the id of its finding."""
    following = select(_staged.position, _staged.finding_id).where(_is_shown()).order_by(_staged.position).limit(1)
    position, finding_id = connection.execute(following).one()
    connection.execute(delete(staged_findings).where(_staged.position == position))
    return str(finding_id)


def _supersede(connection: Connection, detector: str, day: date, rules: Rules, ids: Sequence[str]) -> int:
    table, facts = backfilled_days.c, rules.facts.get(detector)
    own = select(table.version, table.run_id, table.applied_at).where(table.detector == detector, table.day == day)
    version, run_id, applied_at = connection.execute(own).one()
    still = _may_be_superseded(version, facts.version if facts else None)
    mark = update(findings).where(findings.c.finding_id.in_(ids), *still)
    return connection.execute(mark.values(superseded_at=applied_at, superseded_by=run_id)).rowcount


def _may_be_superseded(version: str, declared: str | None) -> list[ColumnElement[bool]]:
    counts = findings.c.superseded_at.is_(None)
    if declared is None:
        return [counts]
    return [counts, or_(findings.c.version == version, findings.c.version != declared)]


def _rows(connection: Connection, ids: Collection[str]) -> dict[str, RowMapping]:
    rows = connection.execute(select(findings).where(findings.c.finding_id.in_(ids))).mappings()
    return {row["finding_id"]: row for row in rows}


def _is_shown() -> ColumnElement[bool]:
    table = backfilled_days.c
    same = (table.detector == _staged.detector, table.day == _staged.day, table.run == _staged.run)
    return exists().where(*same)
