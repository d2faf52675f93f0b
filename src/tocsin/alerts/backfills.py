"""The published findings of a backfilled day, brought into the alerts DB inside one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import Connection, bindparam, insert, select, update

from tocsin.alerts import policy
from tocsin.alerts.recording import Recorded, Rules, record
from tocsin.alerts.schema import backfilled_days, findings
from tocsin.backfill.ledger import Published
from tocsin.errors import TocsinError
from tocsin.finding import Finding, Origin
from tocsin.history.places import begin, end


class UnusableDay(TocsinError):
    """Published findings that no alerts DB can take as those of their day; a retry does not help."""


@dataclass(frozen=True)
class Backfilled:
    """All findings of one detector and day, as they were published."""

    detector: str
    day: date
    published: Published
    findings: list[Finding]


@dataclass(frozen=True)
class Applied:
    """What a day changed: `recorded`, and how many findings it no longer reproduces that counted until now."""

    recorded: Recorded
    superseded: int


def read(detector: str, day: date, published: Published, found: list[Finding]) -> Backfilled:
    """`found` as the findings of `day`, detected when they were published.

    Raises:
        UnusableDay: one of them is of another detector or day, or cannot be stored.
    """
    own = {"detected_at": published.at, "origin": Origin.BACKFILL}
    usable = [finding.model_copy(update=own) for finding in found]
    for finding in usable:
        faults = policy.faults_of(finding)
        if finding.detector != detector:
            faults.append(f"is of {finding.detector}")
        elif not faults and finding.day != day:
            faults.append(f"belongs to {finding.day}")
        if faults:
            raise UnusableDay(f"finding {finding.finding_id[:64]}: {'; '.join(faults)}; run {detector} for {day} again")
    return Backfilled(detector, day, published, usable)


def apply(connection: Connection, backfilled: Backfilled, rules: Rules, now: datetime) -> Applied:
    """Let the DB hold of this detector and day what was published; a repetition changes nothing but `applied_at`."""
    _note(connection, backfilled, now)
    recorded = record(connection, backfilled.findings, rules, now)
    return Applied(recorded, _supersede(connection, backfilled, rules, now))


def applied(connection: Connection, detector: str) -> dict[date, str]:
    """The runs whose findings the DB holds, by day."""
    table = backfilled_days.c
    rows = connection.execute(select(table.day, table.run).where(table.detector == detector))
    return {day: run for day, run in rows}


def _note(connection: Connection, backfilled: Backfilled, now: datetime) -> None:
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


def _supersede(connection: Connection, backfilled: Backfilled, rules: Rules, now: datetime) -> int:
    """Mark the findings of the day that count and are not among those of the backfill."""
    table = findings.c
    counting = select(table.finding_id, table.version).where(
        table.detector == backfilled.detector,
        table.moment >= begin(backfilled.day),
        table.moment < end(backfilled.day),
        table.superseded_at.is_(None),
    )
    facts = rules.facts.get(backfilled.detector)
    declared, version = facts.version if facts else None, backfilled.published.made.version
    found = {finding.finding_id for finding in backfilled.findings}
    gone = [
        {"gone": finding_id}
        for finding_id, own in connection.execute(counting)
        if finding_id not in found and policy.has_last_word(version, own, declared)
    ]
    if gone:
        mark = update(findings).where(table.finding_id == bindparam("gone"))
        connection.execute(mark.values(superseded_at=now, superseded_by=backfilled.published.run_id), gone)
    return len(gone)
