"""The published findings of a backfilled day, brought into the alerts DB: in chunks, and for readers at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TypeVar

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    delete,
    exc,
    exists,
    insert,
    or_,
    select,
    union_all,
    update,
)

from tocsin.alerts import finding_merging
from tocsin.alerts.finding_merging import faults_of
from tocsin.alerts.recording import Recorded, Rules, record
from tocsin.alerts.store.alert_rows import finding_values, stored_finding
from tocsin.alerts.store.schema import backfilled_days, findings, staged_findings, upsert
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.finding import Finding, Origin
from tocsin.history.backfill.backfill_ledger import Published
from tocsin.history.places import begin, end

Read = Callable[[], AbstractContextManager[Connection]]
Write = Callable[[], AbstractContextManager[tuple[Connection, Rules]]]
_T = TypeVar("_T")
_log = structlog.get_logger()


class UnusableDay(TocsinError):
    """Published findings that no alerts DB can take as those of their day; a retry does not help."""


@dataclass(frozen=True)
class BackfilledDay:
    """All findings of one detector and day, as they were published."""

    detector: str
    day: date
    published: Published
    findings: list[Finding]


def read_day(detector: str, day: date, published: Published, found: list[Finding]) -> BackfilledDay:
    """`found` as the findings of `day`, detected when they were published.

    Raises:
        UnusableDay: one of them is of another detector or day, or cannot be stored.
    """
    own = {"detected_at": published.at, "origin": Origin.BACKFILL}
    usable = [finding.model_copy(update=own) for finding in found]
    for finding in usable:
        faults = faults_of(finding)
        if finding.detector != detector:
            faults.append(f"is of {finding.detector}")
        elif not faults and finding.day != day:
            faults.append(f"belongs to {finding.day}")
        if faults:
            raise UnusableDay(f"finding {finding.finding_id[:64]}: {'; '.join(faults)}; run {detector} for {day} again")
    return BackfilledDay(detector, day, published, usable)


class StoredDays:
    """Brings backfilled days into the alerts DB. Each step of a generator here is a transaction or a few short ones.

    While the DB cannot be used a step raises TransientError. Whoever stops half-way calls `settle`, which resumes.
    """

    def __init__(self, read: Read, write: Write, clock: Callable[[], datetime]) -> None:
        self._read, self._write, self._clock = read, write, clock

    def settle(self) -> Generator[None, None, None]:
        """End what a dead process, or trouble with the DB, left: a day that is shown is merged, another removed."""
        yield from self._merge()
        while True:
            with self._write() as (connection, _):
                rows = _discard(connection)
            if rows < CHUNK:
                return
            yield

    def apply(self, backfilled: BackfilledDay) -> Generator[None, None, Recorded]:
        """Let the DB hold of this detector and day what was published; a repetition changes nothing but `applied_at`.

        Readers see the day as before until they see it whole. StatementError if the DB refuses the content: the day is
        as before and a retry does not help.
        """
        yield from self.settle()
        yield from self._stage(backfilled)
        with self._write() as (connection, _):
            _note(connection, backfilled, self._clock())
        return (yield from self._merge())

    def _stage(self, backfilled: BackfilledDay) -> Iterator[None]:
        with self._write() as (_, rules):
            facts = rules.facts.get(backfilled.detector)
        declared = facts.version if facts else None
        found = list({finding.finding_id: finding for finding in backfilled.findings}.values())
        for part in _chunks(found):
            with self._write() as (connection, _):
                _stage(connection, backfilled, declared, part, self._clock())
            if len(part) == CHUNK:
                yield
        while gone := self._find_gone(backfilled, declared):
            for ids in _chunks(gone):
                with self._write() as (connection, _):
                    _stage_superseded(connection, backfilled, ids, self._clock())
                if len(ids) == CHUNK:
                    yield  # to findings of the stream, after which the day is looked at again

    def _find_gone(self, backfilled: BackfilledDay, declared: str | None) -> list[str]:
        """List the findings of the day that count, are not staged, and are for the backfill to supersede."""
        table = findings.c
        counting = select(table.finding_id).where(
            table.detector == backfilled.detector,
            table.moment >= begin(backfilled.day),
            table.moment < end(backfilled.day),
            *_may_be_superseded(backfilled.published.made.version, declared),
            ~exists().where(_staged.finding_id == table.finding_id),
        )
        with self._read() as connection:
            return list(connection.execute(counting.order_by(table.moment)).scalars())

    def _merge(self) -> Generator[None, None, Recorded]:
        done, size = Recorded(), CHUNK
        while True:
            try:
                with self._write() as (connection, rules):
                    recorded, rows = _merge_next(connection, rules, self._clock(), size)
            except (exc.StatementError, ValueError, OverflowError) as error:
                size = self._leave_out(error) if size == 1 else 1
                continue
            done.add(recorded)
            if rows < size:
                return done
            yield

    def _leave_out(self, error: Exception) -> int:
        with self._write() as (connection, _):
            finding_id = _drop_next(connection)
        _log.error("backfilled finding rejected by the alerts DB", finding_id=finding_id, error=str(error)[:500])
        return CHUNK


def _chunks(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK))


def applied_runs(connection: Connection, detector: str) -> dict[date, str]:
    """The runs whose findings the DB holds, by day."""
    table = backfilled_days.c
    rows = connection.execute(select(table.day, table.run).where(table.detector == detector))
    return {day: run for day, run in rows}


def _note(connection: Connection, backfilled: BackfilledDay, now: datetime) -> None:
    key = {"detector": backfilled.detector, "day": backfilled.day}
    values = {
        "run": backfilled.published.run,
        "run_id": backfilled.published.run_id,
        "version": backfilled.published.made.version,
        "findings": len(backfilled.findings),
        "applied_at": now,
    }
    upsert(connection, backfilled_days, key, values)


CHUNK = 500
"""Rows of one transaction: some 0.2 s on SQLite."""

_COLUMNS = tuple(findings.c.keys())
_staged = staged_findings.c


def visible(connection: Connection) -> FromClause:
    """`findings` as readers see them: a day that is being merged counts whole."""
    if connection.execute(select(_staged.position).where(_is_shown()).limit(1)).first() is None:
        return findings
    hidden = exists().where(_staged.finding_id == findings.c.finding_id)
    shown = select(*(_staged[name] for name in _COLUMNS))
    return union_all(select(findings).where(~hidden), shown).subquery()


def _discard(connection: Connection) -> int:
    """Remove a chunk of what was staged and is not shown; returns how many rows."""
    chunk = select(_staged.position).where(~_is_shown()).order_by(_staged.position).limit(CHUNK)
    return connection.execute(delete(staged_findings).where(_staged.position.in_(chunk))).rowcount


def _stage(
    connection: Connection, backfilled: BackfilledDay, declared: str | None, part: Sequence[Finding], now: datetime
) -> None:
    """Stage published findings, each merged with what the stream has said of it.

    `declared` is the version that is declared now; None when the detector was never declared here.
    """
    known = _rows(connection, [finding.finding_id for finding in part])
    rows = []
    for finding in part:
        row = known.get(finding.finding_id)
        if row is None:
            stored = finding_merging.first(finding, declared, None, now)
        else:
            stored = finding_merging.after(stored_finding(row), finding, declared, None)
        rows.append(finding_values(stored) | {"published": finding.model_dump_json(exclude_none=True)})
    own = {"day": backfilled.day, "run": backfilled.published.run}
    connection.execute(insert(staged_findings), [row | own for row in rows])


def _stage_superseded(connection: Connection, backfilled: BackfilledDay, ids: Sequence[str], now: datetime) -> None:
    published = backfilled.published
    mark = {"superseded_at": now, "superseded_by": published.run_id, "published": None}
    mark |= {"day": backfilled.day, "run": published.run}
    connection.execute(insert(staged_findings), [dict(row) | mark for row in _rows(connection, ids).values()])


def _merge_next(connection: Connection, rules: Rules, now: datetime, size: int) -> tuple[Recorded, int]:
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


def _drop_next(connection: Connection) -> str:
    """Remove the next row that is shown, because it cannot be merged; returns the id of its finding."""
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
