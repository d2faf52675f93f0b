"""How the jobs are: what each last said of itself, against what should run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from tocsin.cli.json_shapes import JobStatus, Standing
from tocsin.kafka.job_reports import read_reports
from tocsin.model.errors import TransientError
from tocsin.model.job_report import SILENT_SECONDS, JobReport, JobState
from tocsin.project.settings import Settings
from tocsin.runtime import heartbeat

_STANDING = {
    JobState.STARTING: Standing.WARNING,
    JobState.WAITING: Standing.WARNING,
    JobState.DRAINING: Standing.OK,
    JobState.RUNNING: Standing.OK,
    JobState.READY: Standing.WARNING,
    JobState.STOPPING: Standing.WARNING,
    JobState.STOPPED: Standing.PROBLEM,
    JobState.FAILED: Standing.PROBLEM,
}


def reports(settings: Settings, jobs: Iterable[str]) -> tuple[dict[str, JobReport], str]:
    """The last report of each job, and why they are not Kafka's, if they are not.

    When Kafka cannot be reached, the signs of life of jobs on this machine still tell.
    """
    try:
        return read_reports(settings), ""
    except TransientError as error:
        beats = {job: heartbeat.read_beat(settings.state, job) for job in jobs}
        return {job: beat.report for job, beat in beats.items() if beat is not None}, str(error)


def besides(settings: Settings, jobs: Iterable[str]) -> dict[str, JobReport]:
    """The last report of each process on this machine that is to take over from the one that leads its job."""
    beats = heartbeat.read_besides(settings.state, jobs)
    return {job: beat.report for job, beat in beats.items() if beat.age_seconds <= SILENT_SECONDS}


def with_fault(one: JobStatus, fault: str | None) -> JobStatus:
    """`one`, whose file has `fault`: what it lacks is not its process but a file that can be read."""
    if fault is None:
        return one
    runs = one.standing is not Standing.PROBLEM
    reason = f"broken: {fault}{'; the version before it runs on' if runs else ''}"
    standing = Standing.WARNING if runs else Standing.PROBLEM
    return one.model_copy(update={"fault": fault, "reason": reason, "standing": standing})


def statuses(
    wanted: Iterable[str], reports: Mapping[str, JobReport], found: Mapping[str, datetime], now: datetime
) -> list[JobStatus]:
    """How each job is that should run, or that runs all the same.

    Args:
        wanted: jobs that should run.
        reports: the last report of each job.
        found: when the last finding of each detector's job arrived.
        now: the time, UTC.
    """
    wanted = list(wanted)
    others = sorted(job for job, report in reports.items() if job not in wanted and _is_alive(report, now))
    return [_status(job, reports.get(job), found.get(job), now) for job in (*wanted, *others)]


def _is_alive(report: JobReport, now: datetime) -> bool:
    return report.state is not JobState.STOPPED and (now - report.at).total_seconds() <= SILENT_SECONDS


def _status(job: str, report: JobReport | None, found: datetime | None, now: datetime) -> JobStatus:
    if report is None:
        missing = {"state": JobState.STOPPED, "reason": "never ran here"}
        return JobStatus(job=job, at=now, standing=Standing.PROBLEM, last_finding_at=found, **missing)
    age = max(0.0, (now - report.at).total_seconds())
    standing, reason = _STANDING[report.state], report.reason
    if age > SILENT_SECONDS and report.state not in (JobState.STOPPED, JobState.FAILED):
        standing = Standing.PROBLEM
        reason = f"silent since its last report, when it was {report.state}: it hangs or is gone"
    told = report.model_dump() | {"reason": reason}
    return JobStatus(**told, standing=standing, age_seconds=round(age, 1), last_finding_at=found)
