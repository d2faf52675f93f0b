"""Collect the jobs' last reports, and judge their health from these and from the processes here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from tocsin.cli.json_shapes import JobStatus
from tocsin.kafka.job_reports import read_reports
from tocsin.model.errors import TransientError
from tocsin.model.job_report import SILENT_SECONDS, JobReport, JobState
from tocsin.project.settings import Settings
from tocsin.runtime.heartbeat import Beat
from tocsin.supervision.health import health
from tocsin.supervision.job_kinds import broken_jobs
from tocsin.supervision.snapshot import Snapshot


def reports(settings: Settings, snapshot: Snapshot) -> tuple[dict[str, JobReport], str]:
    """Return the last report of each job, and why they are not Kafka's, if they are not.

    When Kafka cannot be reached, the signs of life of jobs on this machine still tell.
    """
    try:
        return read_reports(settings), ""
    except TransientError as error:
        return {job: beat.report for job, beat in snapshot.beats.items()}, str(error)


def statuses(
    snapshot: Snapshot, wanted: Iterable[str], reports: Mapping[str, JobReport], found: Mapping[str, datetime]
) -> list[JobStatus]:
    """Judge the health of each job that should run or does run.

    Args:
        snapshot: a look at this machine.
        wanted: jobs that should run.
        reports: the last report of each job.
        found: when the last finding of each detector's job arrived.
    """
    wanted = list(wanted)
    beats = {job: Beat(one, max(0.0, snapshot.at - one.at.timestamp())) for job, one in reports.items()}
    others = sorted(job for job, beat in beats.items() if job not in wanted and _is_alive(beat))
    return [_status(snapshot, job, beats.get(job), found.get(job), off=job not in wanted) for job in (*wanted, *others)]


def _is_alive(beat: Beat) -> bool:
    return beat.report.state is not JobState.STOPPED and beat.age_seconds <= SILENT_SECONDS


def _status(snapshot: Snapshot, job: str, beat: Beat | None, found: datetime | None, *, off: bool) -> JobStatus:
    facts = snapshot.reported(job, beat, off)
    fares, error = health(facts), broken_jobs(snapshot.catalog).get(job)
    now = datetime.fromtimestamp(snapshot.at, UTC)
    report = facts.beat.report if facts.beat else JobReport(job=job, at=now, state=JobState.STOPPED)
    return JobStatus(
        **report.model_dump() | {"reason": fares.reason},
        standing=fares.standing,
        health=fares.word,
        age_seconds=round(facts.beat.age_seconds, 1) if facts.beat else None,
        last_finding_at=found,
        beside=facts.beside.report if facts.beside else None,
        fault=str(error.faults[0]) if error else None,
    )
