"""Decide what to do about alerts. Pure; the caller passes the time. What becomes of a finding is in `finding_merging`.

* Dedup: findings of one detector, and one entity or its declared part, within one period of event time belong to one
  alert.
* Notifying: `urgent` at the crossing, `email` once the window has closed, later findings in a `delayed` summary;
  an alert that was notified as e-mail is notified once more when it becomes urgent, and never at a lower level. What
  continues from period to period below `urgent` notifies once, and is then listed once each `repeat_interval`.
  What a backfill finds is news for two days, in the summary alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from tocsin.alerts.alert_states import LEVELS
from tocsin.declare.model.detector import DetectorSpec, Stage
from tocsin.declare.model.detector_guide import DetectorGuide
from tocsin.declare.model.finding import Finding, Origin, canonical_entity
from tocsin.declare.model.job_report import JobReport

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)

BACKFILLS_ARE_NEWS = timedelta(days=2)
"""So long after a window a backfill of it may open an alert and be listed as delayed: the nightly run of the day before
is in it with hours to spare, and a first run over months of history lists nothing that nobody can act on any more."""

INCOMPLETE_AFTER = timedelta(minutes=2)
"""So long an e-mail waits for a window to close while its job is down or behind."""


class NotificationKind(StrEnum):
    """The way in which a notification leaves."""

    URGENT = "urgent"
    EMAIL = "email"
    DELAYED = "delayed"
    """Found too late: one line in a summary, at most one such message an hour."""
    CONTINUING = "continuing"
    """Continues an alert that was notified: one line in the next summary, once each `alerts.repeat_interval`."""
    RETURNED = "returned"
    """What was missing has come back; see `tocsin.alerts.alert_lifecycle`."""
    UPDATE = "update"
    """The alert was answered, or is over: for receivers that follow alerts, such as a pager's service."""
    NOTICE = "notice"
    """About a job or a run, and no alert; see `tocsin.alerts.notify.notices`."""


SUMMARIZED = (NotificationKind.DELAYED, NotificationKind.CONTINUING)
"""What leaves as a line of a summary alone."""


class DetectorFacts(DetectorGuide):
    """The alerting part of a detector's declaration, as it was read last.

    Attributes:
        lateness: of its source: how long after its end a window may still change.
        live: False for a detector that notifies nobody (shadow, signal, retired).
        looks_every: of a detector that expects entities, from the start of one window to the next; None for others.
        dedup: columns of the entity that tell alerts apart; all if empty.
    """

    name: str
    version: str
    live: bool
    dedup: tuple[str, ...] = ()
    dedup_period: timedelta
    page_within: timedelta
    lateness: timedelta = timedelta(0)
    looks_every: timedelta | None = None

    @classmethod
    def of(cls, spec: DetectorSpec, lateness: timedelta = timedelta(0)) -> DetectorFacts:
        """The facts in a declaration."""
        return cls(
            **DetectorGuide.of(spec).guide, name=spec.name, version=spec.version,
            live=spec.stage is Stage.LIVE and spec.notify, dedup=spec.dedup, dedup_period=spec.dedup_period,
            page_within=spec.page_within, lateness=lateness,
            looks_every=None if spec.expect is None else spec.slide or spec.window,
        )  # fmt: skip


@dataclass(frozen=True)
class SentBefore:
    """The messages about an alert that people were sent, or are about to be.

    Attributes:
        at_once: highest level that left, or will leave, in a mail of its own; empty for none.
        delayed: highest level listed in a delayed summary; empty for none.
    """

    at_once: str = ""
    delayed: str = ""

    def plus(self, kind: NotificationKind, level: str) -> SentBefore:
        """The same after a notification of `kind` about a finding of `level`."""
        if kind in SUMMARIZED:
            return SentBefore(self.at_once, max(self.delayed, level, key=LEVELS.__getitem__))
        return SentBefore(max(self.at_once, level, key=LEVELS.__getitem__), self.delayed)


def dedup_key(entity: dict[str, str], rules: DetectorFacts | DetectorSpec) -> str:
    """What an alert about `entity` is about: the entity, or the declared part of it, as canonical JSON."""
    part = {name: value for name, value in entity.items() if name in rules.dedup}
    return canonical_entity(part or entity)


def alert_start(moment: datetime, starts: Iterable[datetime], period: timedelta) -> datetime | None:
    """Find the alert of one (detector, key) that a finding belongs to: the start of its period; None for a new one.

    The period of an alert runs in event time from its first finding. Partitions deliver findings out of order, so one
    that is older than the first, by less than a period, joins as well; else it would notify a second time.
    """
    inside = [start for start in starts if start <= moment < start + period]
    early = [start for start in starts if moment < start < moment + period]
    return max(inside, default=None) or min(early, default=None)


def notification(finding: Finding, facts: DetectorFacts, before: SentBefore, now: datetime) -> NotificationKind | None:
    """Choose the notification for `finding`, given what people were `before` about its alert; None for none."""
    if not notifies(finding, facts, now):
        return None
    rank = LEVELS[finding.level]
    if finding.origin is not Origin.BACKFILL and now - _end(finding) <= facts.page_within:
        return NotificationKind(finding.level) if rank > LEVELS[before.at_once] else None
    return NotificationKind.DELAYED if rank > max(LEVELS[before.at_once], LEVELS[before.delayed]) else None


def continues(finding: Finding, facts: DetectorFacts, start: datetime, sent: SentBefore) -> bool:
    """Return whether a new alert continues the one of its entity that began at `start`.

    People were notified of that one at once, so an `email` alert is listed in the next summary; an urgent one notifies
    again, and so does what is missing, whose end is notified to the same people.
    """
    follows = start > finding.moment - 2 * facts.dedup_period
    return follows and finding.level == "email" and bool(sent.at_once) and facts.looks_every is None


def notifies(finding: Finding, facts: DetectorFacts, now: datetime) -> bool:
    """Return whether `finding` may notify anybody: its detector is live, and its window not long over."""
    return facts.live and (finding.origin is not Origin.BACKFILL or now - _end(finding) <= BACKFILLS_ARE_NEWS)


def _end(finding: Finding) -> datetime:
    return finding.window_end or finding.moment


def patience(finding: Finding, facts: DetectorFacts, now: datetime) -> datetime:
    """Until when an e-mail waits for the window of `finding` to close before it leaves as perhaps incomplete.

    A window of events that were there `now` closes within its own length, whatever its end claims.
    """
    start, end = finding.window_start, finding.window_end
    if start is None or end is None:
        return now
    return max(now, min(end, now + (end - start))) + facts.lateness + INCOMPLETE_AFTER


@dataclass(frozen=True)
class Closing:
    """The state of the window that an e-mail waits for.

    Attributes:
        incomplete: why the window may still change; empty when it is closed.
        closed_at: since when the detector's job has said that the window is closed; None while it has not.
    """

    ready: bool
    incomplete: str = ""
    closed_at: datetime | None = None


@dataclass(frozen=True)
class LastReports:
    """The last reports of the two jobs that must be done with a window before its e-mail leaves; None when unheard."""

    detector: JobReport | None
    indexer: JobReport | None


def closing(
    window_end: datetime, until: datetime, jobs: LastReports, now: datetime, closed_at: datetime | None
) -> Closing:
    """Return whether a window that ends at `window_end` is closed, waiting no longer than `until`.

    It is closed once the watermark of the detector's job has passed its end, or the job says between two boundaries
    that it is complete through it, and the indexer has stored all that was appended before the job said so (its
    watermark: a finding may still be on its way). Should the job have said so too early, what comes later notifies as
    ever. `closed_at` is that of the last call for the same window, so that later reports of the job do not move the
    mark.
    """
    report = jobs.detector
    if closed_at is None and report is not None:
        marks = (mark for mark in (report.watermark, report.complete_through) if mark is not None)
        closed_at = report.at if max(marks, default=_FIRST) >= window_end else None
    indexed = jobs.indexer.watermark if jobs.indexer is not None else None
    if closed_at is not None and indexed is not None and indexed >= closed_at:
        return Closing(True, "", closed_at)
    if now >= until:
        return Closing(True, _why_open(jobs, closed_at), closed_at)
    return Closing(False, "", closed_at)


def _why_open(jobs: LastReports, closed_at: datetime | None) -> str:
    late, who = (jobs.detector, "the detector's job") if closed_at is None else (jobs.indexer, "the indexer")
    if late is None:
        return f"{who} has not reported yet"
    mark = "has no watermark yet" if late.watermark is None else f"had got to {late.watermark:%Y-%m-%d %H:%M:%S} UTC"
    return f"{who} was {late.state.value} at {late.at:%H:%M:%S} UTC and {mark}"
