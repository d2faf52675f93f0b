"""Collect the jobs' last reports, and judge their health from these and from the processes here.

One read-model for `tocsin status` and the exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.dev.control import wanted_jobs
from tocsin.model.errors import ConfigError, Fault, TocsinError, TransientError, nearest
from tocsin.model.job_report import SILENT_SECONDS, FailureCause, JobReport, JobState
from tocsin.model.names import DETECTOR, JobName
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime.code_versions import FollowedCatalog
from tocsin.runtime.heartbeat import Beat
from tocsin.supervision.health import JobFacts, Standing, health
from tocsin.supervision.job_kinds import broken_jobs, desired_jobs
from tocsin.supervision.job_states import Condition
from tocsin.supervision.runners.runner_choice import process_reader
from tocsin.supervision.snapshot import Snapshot, look


class JobStatus(JobReport):
    """One job, as `tocsin status` shows it: its last report and what follows from it.

    Attributes:
        standing: ok, warning (it waits or starts), problem (failed, stopped, silent, missing, in a crash loop or the
            like) or off (it need not run).
        health: the same in a word or two, such as running, crash loop or silent; the pages show this word.
        age_seconds: since the job last gave a sign of life; null when it never did.
        last_finding_at: when a finding of the detector last arrived; null when none did.
        beside: the last report of the process that is to take over from this one; null when there is none.
        fault: the first fault of the file that declares the job; null when it can be read.
        restarts: how many times it failed and was started again, as supervision remembers.
        supervised_at: when the supervisor last looked at the jobs: what is said of restarts is as of then. Null when
            none has looked on this machine.
    """

    standing: Standing
    health: str
    age_seconds: float | None = None
    last_finding_at: datetime | None = None
    beside: JobReport | None = None
    fault: str | None = None
    restarts: int = 0
    supervised_at: datetime | None = None


@dataclass(frozen=True)
class StatusReading:
    """One look at all jobs.

    Attributes:
        jobs: how each fares.
        kafka_away: why the reports are not Kafka's but this machine's heartbeats; empty if they are Kafka's.
    """

    jobs: Sequence[JobStatus]
    kafka_away: str


class StatusReader:
    """Reads how the jobs of an installation fare, as often as asked. For one thread."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Mapping[str, JobReport]],
        catalog: Callable[[], Catalog] | None = None,
    ) -> None:
        """Read the last report of each job with `read`, which raises TransientError while Kafka is away.

        `catalog` returns what is in force now; None to read the files.
        """
        self._settings, self._read_reports = settings, read
        self._processes = process_reader(settings)
        self._catalog = catalog or FollowedCatalog(settings).read

    def read(self, only: str | None = None, found: Mapping[str, datetime] | None = None) -> StatusReading:
        """Look at all jobs, or at one; `found` says when the last finding of each detector's job arrived.

        Raises:
            ConfigError: there is no such job, or the desired jobs cannot be read.
        """
        catalog = self._catalog()
        wanted = self.wanted(only)
        snapshot = look(self._settings, catalog, self._processes())
        try:
            reports, away = dict(self._read_reports()), ""
        except (ConfigError, TransientError) as error:
            reports, away = {job: beat.report for job, beat in snapshot.beats.items()}, str(error)
        known = {job: report for job, report in reports.items() if only in (None, job)}
        return StatusReading(statuses(snapshot, wanted, known, found or {}), away)

    def wanted(self, only: str | None = None) -> list[str]:
        """List the jobs that should run, or the named one; errors as for `read`."""
        catalog = self._catalog()
        if only is None:
            return list(wanted_jobs(self._settings, catalog))
        declared = list(desired_jobs(catalog, self._settings))
        if only not in declared:
            raise ConfigError([Fault("status", f"there is no job '{only}' here", nearest=nearest(only, declared))])
        return [only]


def last_findings(settings: Settings, jobs: Iterable[str]) -> tuple[dict[str, datetime], str]:
    """Read when the latest finding of each detector's job arrived; and why that is not known, if it is not."""
    found_at = {}
    database = open_store(settings)
    try:
        for job in map(JobName.parse, jobs):
            wanted = FindingFilter(detector=job.name, limit=1)
            for stored in list_findings(database, wanted) if job.kind == DETECTOR else ():
                found_at[str(job)] = stored.finding.detected_at or stored.first_detected_at
    except TocsinError as error:
        return found_at, str(error)
    finally:
        database.close()
    return found_at, ""


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
    own = {"reason": fares.reason, "cause": _cause(facts)}
    lag = {"lag_seconds": round(report.lag_after(facts.beat.age_seconds), 1)} if facts.beat and report.has_lag else {}
    return JobStatus(
        **report.model_dump() | own | lag,
        standing=fares.standing,
        health=fares.word,
        age_seconds=round(facts.beat.age_seconds, 1) if facts.beat else None,
        last_finding_at=found,
        beside=facts.beside.report if facts.beside else None,
        fault=str(error.faults[0]) if error else None,
        restarts=facts.past.restarts,
        supervised_at=None if facts.looked_seconds is None else now - timedelta(seconds=facts.looked_seconds),
    )


def _cause(facts: JobFacts) -> FailureCause | None:
    """Return the first cause of the trouble that the job is in, or the one that it told itself."""
    first = None if facts.past.condition is Condition.FINE else facts.past.first
    return first or (facts.beat.report.cause if facts.beat else None)
