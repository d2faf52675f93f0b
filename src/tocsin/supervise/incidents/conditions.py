"""Decide when a condition of a job begins of which people must hear, and when it is over. Pure.

People hear of a condition once, until an hour has passed without it. `watch` gathers the facts, keeps the memory and
writes the mails.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from tocsin.declare.model.durations import span
from tocsin.declare.model.job_report import (
    ISOLATED,
    LONG_WAIT_SECONDS,
    MUCH_IGNORED,
    MUCH_QUARANTINED,
    REFUSED_RECIPIENTS,
    TOPICS_RECREATED,
    UNDECLARED_DETECTORS,
    JobReport,
    JobState,
)
from tocsin.declare.model.names import DETECTOR, FLOW, INDEXER, INGEST, TABLE, VIEW, JobName, file_name
from tocsin.supervise.job_states import HUNG, Condition, Past

CALM_SECONDS = 3600.0
_HOLD = {
    Condition.LAGGING: 120.0,
    Condition.BROKEN: 60.0,
    Condition.SILENT: 120.0,
    Condition.UNDECLARED: 60.0,
    Condition.BEHIND: 3600.0,
}
"""Conditions that must last so long before people hear of them: a backlog drains, a file is saved half-written, senders
come back after a stack that was down, and its first night seals the days that are missing."""

_LATE_RECORDS, _LATE_SECONDS = 1_000, 600.0
"""The late share is taken over at least so many of the latest records and so long, or since the process began."""

_FEWEST, _FEWEST_LATE = 100, 10  # of fewer records, and of fewer late ones, a share says nothing

_REPEATED_SECONDS = 90.0
"""So long after the first batch of a feeder its repeats have been read, and a look, one a minute, has seen that."""

_OUTSIDE = {
    "the alerts DB": ("alerts DB",),
    "the object store": ("object store",),
    "Kafka": ("Kafka", "topic ", "cannot write to "),
}
"""What jobs wait for together, by words in their reasons; the first that fits."""

_SET_ASIDE, _LOST = (Condition.SET_ASIDE, "set_aside"), (Condition.LOST, "removed_unread")
_RECREATED = (Condition.RECREATED, TOPICS_RECREATED)
"""Conditions that begin again with each further record, and the figure of the report that counts them."""
_COUNTED = {
    Condition.REFUSED: (REFUSED_RECIPIENTS, "recipients refuse what is sent to them"),
    Condition.UNDECLARED: (UNDECLARED_DETECTORS, "detectors that no file declares have findings"),
}
"""Conditions that stand while a figure of the report is not 0, with that figure and what it counts."""
_LATE_SHARE = 0.01  # of the latest records of a detector
_COARSE_SECONDS = 30.0
"""Times that move with each look are remembered no finer than this, or the memory would be written at each look."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits at which conditions begin: seconds behind, seconds without input."""

    lag: float
    patience: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The jobs at one moment.

    Attributes:
        feeders: by detector job, the jobs through which its events come.
    """

    pasts: Mapping[str, Past] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    reports: Mapping[str, JobReport] = field(default_factory=dict)
    feeders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    behind: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Figures of the process `pid` of a job as they stood at `at`."""

    pid: int
    at: float
    rows_in: int = 0
    dropped_late: int = 0


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One job is in a condition that people must hear of.

    Attributes:
        written: whether its mail waits for its departure, or has left.
    """

    job: str
    condition: Condition
    reason: str
    at: float
    last_at: float
    written: bool = False

    @property
    def cause(self) -> str:
        """Name a cause that jobs may share, such as Kafka being away, for one mail about all; else empty."""
        if self.condition is Condition.NO_ROOM:
            return "room on the disk"
        return missing(self.reason) if self.condition is Condition.WAITING else ""

    @property
    def name(self) -> str:
        """Unique, the same at each look, and good as the name of a file and of a run in Airflow."""
        job = re.sub(r"[^A-Za-z0-9_.-]", "_", file_name(self.job))[:100]
        mark = hashlib.sha256(f"{self.job} {self.at}".encode()).hexdigest()[:8]
        return f"{self.condition.replace(' ', '-')}__{job}__{int(self.at)}-{mark}"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory that must outlive the process that watches.

    Attributes:
        incidents: those that stand, by job and condition.
        bases: by detector job, the counters since which its late share is taken.
        inputs: by ingest and flow job, the counters when something came in last; a source without any is not silent.
        owners: of each job, as the last readable version of its file said.
        set_aside, lost, recreated: by job, the count of records, records or topics of which people last heard.
        first_batches: by ingest and flow job, the start of its process, and when that had finished a batch first.
        refused: by source, the days that its gate refuses and of which its owner was notified.
    """

    incidents: Mapping[str, Incident] = field(default_factory=dict)
    bases: Mapping[str, Counters] = field(default_factory=dict)
    inputs: Mapping[str, Counters] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    first_batches: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    set_aside: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, tuple[date, ...]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    recreated: Mapping[str, int] = field(default_factory=dict)


def judge(facts: Facts, before: Memory, bounds: Bounds, now: float) -> Memory:
    """Judge the incidents `now`, in epoch seconds; returns the memory for the next look, which takes it as `before`."""
    detectors = {job: report for job, report in facts.reports.items() if JobName.parse(job).kind == DETECTOR}
    feeders = {job: report for job, report in facts.reports.items() if JobName.parse(job).kind in (INGEST, FLOW)}
    first_batches = {**before.first_batches, **_first_batches(feeders, before.first_batches, now)}
    repeating = {job for job, report in feeders.items() if _repeats(report, first_batches.get(job), now)}
    bases = dict(before.bases)
    for job, report in detectors.items():
        begins_anew = not repeating.isdisjoint(facts.feeders.get(job, ()))
        bases[job] = _counters(report, now) if begins_anew else _base(report, before.bases.get(job), now)
    rolled = {job: _roll(report, bases[job], now) for job, report in detectors.items()}
    inputs = dict(before.inputs)
    for job, report in feeders.items():
        if report.rows_in > 0:
            inputs[job] = _input(report, before.inputs.get(job), now)
    memory = replace(before, bases=bases, inputs=inputs, first_batches=first_batches)
    set_aside, lost, recreated = (_notified(facts, before, *figure) for figure in (_SET_ASIDE, _LOST, _RECREATED))
    memory = replace(memory, set_aside={**before.set_aside, **set_aside}, lost={**before.lost, **lost})
    memory = replace(memory, recreated={**_recreated_before(facts, before), **recreated})
    found = {(job, condition): reason for job, condition, reason in _symptoms(facts, memory, bounds, now)}
    jobs = facts.pasts.keys() | facts.broken.keys() | facts.reports.keys() | facts.behind.keys()
    known = {key: old for key, old in before.incidents.items() if old.job in jobs}
    return replace(memory, incidents=_continue(known, found, now), bases={**bases, **rolled})


def _continue(
    before: Mapping[str, Incident], found: Mapping[tuple[str, Condition], str], now: float
) -> dict[str, Incident]:
    """Keep the incidents of `before` that are not over `now`, and open one for each condition `found`."""
    incidents: dict[str, Incident] = {}
    for key, old in before.items():
        over = now - old.last_at >= CALM_SECONDS or not old.written
        if (old.job, old.condition) in found or not over:
            incidents[key] = old
    for (job, condition), reason in found.items():
        incident = incidents.get(f"{job} {condition}") or Incident(
            job=job, condition=condition, reason=reason, at=now, last_at=now
        )
        incidents[f"{job} {condition}"] = (
            replace(incident, last_at=now) if now - incident.last_at >= _COARSE_SECONDS else incident
        )
    return incidents


def missing(reason: str) -> str:
    """Name what a job waits for that gives this `reason`."""
    return next((what for what, words in _OUTSIDE.items() if any(word in reason for word in words)), reason)


def is_due(incident: Incident, now: float) -> bool:
    """Return whether its mail is due."""
    return not incident.written and now - incident.at >= _HOLD.get(incident.condition, 0.0)


def _symptoms(facts: Facts, memory: Memory, bounds: Bounds, now: float) -> Iterator[tuple[str, Condition, str]]:
    for job, past in facts.pasts.items():
        if past.condition is Condition.RESTARTING:
            if past.reason.startswith(HUNG):
                yield job, Condition.HUNG, past.reason
        elif past.condition is not Condition.FINE:
            yield job, past.condition, past.reason
    for condition, reasons in ((Condition.BROKEN, facts.broken), (Condition.BEHIND, facts.behind)):
        for job, reason in reasons.items():
            yield job, condition, reason
    yield from _symptoms_of_waiting(facts)
    for job, report in facts.reports.items():
        for condition, reason in _symptoms_of_flow(job, report, memory, bounds, now):
            yield job, condition, reason


def _symptoms_of_waiting(facts: Facts) -> Iterator[tuple[str, Condition, str]]:
    waiting = {job: report for job, report in facts.reports.items() if report.state is JobState.WAITING}
    away = {missing(report.reason) for report in waiting.values() if report.waits_long}
    for job, report in waiting.items():
        # Who has waited half as long for the same thing is named in the same mail.
        if report.waiting_seconds >= LONG_WAIT_SECONDS / 2 and missing(report.reason) in away:
            yield job, Condition.WAITING, f"has waited for {span(report.waiting_seconds)}: {report.reason}"


def _symptoms_of_flow(
    job: str, report: JobReport, memory: Memory, bounds: Bounds, now: float
) -> Iterator[tuple[Condition, str]]:
    if report.bad_ratio > MUCH_QUARANTINED:
        yield Condition.QUARANTINING, f"{report.bad_ratio:.1%} of the latest records went to quarantine"
    if report.ignored_ratio > MUCH_IGNORED:
        yield Condition.IGNORING, f"`ignore` leaves out {report.ignored_ratio:.1%} of the latest records"
    if report.state in (JobState.RUNNING, JobState.DRAINING) and report.lag_seconds > bounds.lag:
        yield Condition.LAGGING, f"is {span(report.lag_seconds)} behind, with {report.lag_records:,} records unread"
    if (set_aside := int(report.counts.get(_SET_ASIDE[1], 0.0))) > memory.set_aside.get(job, 0):
        yield Condition.SET_ASIDE, f"has set aside {_records(set_aside)}: its query fails on each"
    if (lost := int(report.counts.get(_LOST[1], 0.0))) > memory.lost.get(job, 0):
        yield Condition.LOST, f"has not read {_records(lost)} that Kafka has removed"
    if int(report.counts.get(_RECREATED[1], 0.0)) > memory.recreated.get(job, 0):
        what = "a topic that it reads was deleted and created again"
        yield Condition.RECREATED, f"{what}: it reads the new one from its start, what was unread of the former is lost"
    if report.counts.get(ISOLATED):
        yield Condition.ISOLATED, "has a JVM of its own for a day, since an engine has died with it"
    counted = ((condition, int(report.counts.get(figure, 0.0)), text) for condition, (figure, text) in _COUNTED.items())
    yield from ((condition, f"{count:,} {text}: {report.reason}") for condition, count, text in counted if count)
    if job in memory.bases and (share := _late(report, memory.bases[job])) > _LATE_SHARE:
        yield Condition.LATE, f"{share:.1%} of the latest records were too late for their window"
    if (quiet := _quiet(job, report, memory, now)) > bounds.patience.get(job, float("inf")):
        yield Condition.SILENT, f"no events for {span(quiet)}"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _notified(facts: Facts, before: Memory, condition: Condition, figure: str) -> dict[str, int]:
    """Return by job the figure that people have heard of, of the jobs with a mail about the condition."""
    mailed = {
        incident.job for incident in before.incidents.values() if incident.written and incident.condition is condition
    }
    return {job: int(report.counts.get(figure, 0.0)) for job, report in facts.reports.items() if job in mailed}


def _recreated_before(facts: Facts, before: Memory) -> dict[str, int]:
    """Return by job of how many recreated topics people have heard; one without `gaps.json` counts since its start."""
    counts = {
        job: int(report.counts.get(TOPICS_RECREATED, 0.0))
        for job, report in facts.reports.items()
        if JobName.parse(job).kind in (TABLE, VIEW, INDEXER)
    }
    return {job: min(count, counts.get(job, count)) for job, count in before.recreated.items()}


def _base(report: JobReport, base: Counters | None, now: float) -> Counters:
    """The counters since which the late share of a detector is taken; since its process began at first."""
    is_same = base is not None and base.pid == report.pid and base.rows_in <= report.rows_in  # pids come again
    return base if base is not None and is_same else Counters(pid=report.pid, at=now)


def _first_batches(
    feeders: Mapping[str, JobReport], before: Mapping[str, tuple[float, float]], now: float
) -> dict[str, tuple[float, float]]:
    begun = {
        job: report.started_at.timestamp()
        for job, report in feeders.items()
        if report.batch_id is not None and report.started_at
    }
    return {job: (at, now) for job, at in begun.items() if job not in before or before[job][0] != at}


def _repeats(feeder: JobReport, first_batch: tuple[float, float] | None, now: float) -> bool:
    """Return whether detectors may still read records that this process has written a second time.

    The first batch after a start writes again what the process before had written and not committed. Detectors count
    what they dropped of that as late, though they had counted it before.
    """
    if feeder.started_at is None:
        return False
    has_begun = first_batch is not None and first_batch[0] == feeder.started_at.timestamp()
    return not has_begun or first_batch is None or now - first_batch[1] < _REPEATED_SECONDS


def _roll(report: JobReport, base: Counters, now: float) -> Counters:
    """The counters for the next look: a late share of long ago says nothing of now."""
    if report.rows_in - base.rows_in < _LATE_RECORDS or now - base.at < _LATE_SECONDS:
        return base
    return _counters(report, now)


def _counters(report: JobReport, now: float) -> Counters:
    return Counters(pid=report.pid, at=now, rows_in=report.rows_in, dropped_late=report.rows_dropped_late)


def _late(report: JobReport, base: Counters) -> float:
    read, late = report.rows_in - base.rows_in, report.rows_dropped_late - base.dropped_late
    return late / read if read >= _FEWEST and late >= _FEWEST_LATE else 0.0


def _input(report: JobReport, last: Counters | None, now: float) -> Counters:
    new = Counters(pid=report.pid, at=now, rows_in=report.rows_in)
    if last is None:
        return new
    return last if replace(new, at=last.at) == last or now - last.at < _COARSE_SECONDS else new


def _quiet(job: str, report: JobReport, memory: Memory, now: float) -> float:
    """For how long nothing has come in, as far as an ingest can say that has read all there is; 0 of all others."""
    has_read_all = report.state is JobState.RUNNING and report.batch_id is not None and report.lag_records == 0
    return now - memory.inputs[job].at if job in memory.inputs and has_read_all else 0.0
