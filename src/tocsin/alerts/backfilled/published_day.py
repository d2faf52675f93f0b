"""The published findings of a backfilled day, brought into the alerts DB: in chunks, and for readers at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TypeVar

import structlog
from sqlalchemy import Connection, exc, insert, select, update

from tocsin.alerts.backfilled import staging
from tocsin.alerts.backfilled.staging import StagedDay
from tocsin.alerts.finding_merging import faults_of
from tocsin.alerts.recording import Recorded, Rules
from tocsin.alerts.store.schema import backfilled_days
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.finding import Finding, Origin
from tocsin.history.backfill.backfill_ledger import Published

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
                rows = staging.discard(connection)
            if rows < staging.CHUNK:
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
        day = self._day_of(backfilled)
        found = list({finding.finding_id: finding for finding in backfilled.findings}.values())
        for part in _chunks(found):
            with self._write() as (connection, _):
                staging.stage(connection, day, part, self._clock())
            if len(part) == staging.CHUNK:
                yield
        while gone := self._gone(day):
            for ids in _chunks(gone):
                with self._write() as (connection, _):
                    staging.stage_superseded(connection, day, ids, self._clock())
                if len(ids) == staging.CHUNK:
                    yield  # to findings of the stream, after which the day is looked at again

    def _day_of(self, backfilled: BackfilledDay) -> StagedDay:
        published = backfilled.published
        with self._write() as (_, rules):
            facts = rules.facts.get(backfilled.detector)
        version = published.made.version
        declared = facts.version if facts else None
        return StagedDay(backfilled.detector, backfilled.day, published.run, published.run_id, version, declared)

    def _gone(self, day: StagedDay) -> list[str]:
        with self._read() as connection:
            return staging.gone(connection, day)

    def _merge(self) -> Generator[None, None, Recorded]:
        done, size = Recorded(), staging.CHUNK
        while True:
            try:
                with self._write() as (connection, rules):
                    recorded, rows = staging.merge(connection, rules, self._clock(), size)
            except (exc.StatementError, ValueError, OverflowError) as error:
                size = self._leave_out(error) if size == 1 else 1
                continue
            done.add(recorded)
            if rows < size:
                return done
            yield

    def _leave_out(self, error: Exception) -> int:
        with self._write() as (connection, _):
            finding_id = staging.drop_next(connection)
        _log.error("backfilled finding rejected by the alerts DB", finding_id=finding_id, error=str(error)[:500])
        return staging.CHUNK


def _chunks(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (rows[first : first + staging.CHUNK] for first in range(0, len(rows), staging.CHUNK))


def applied_runs(connection: Connection, detector: str) -> dict[date, str]:
    """The runs whose findings the DB holds, by day."""
    table = backfilled_days.c
    rows = connection.execute(select(table.day, table.run).where(table.detector == detector))
    return {day: run for day, run in rows}


def _note(connection: Connection, backfilled: BackfilledDay, now: datetime) -> None:
    published = backfilled.published
    values = {
        "run": published.run,
        "run_id": published.run_id,
        "version": published.made.version,
        "findings": len(backfilled.findings),
        "applied_at": now,
    }
    key = {"detector": backfilled.detector, "day": backfilled.day}
    if connection.execute(update(backfilled_days).filter_by(**key).values(values)).rowcount == 0:
        connection.execute(insert(backfilled_days).values(**key, **values))
