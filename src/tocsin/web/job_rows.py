"""A look at the jobs, and what else is known of them, as the rows of a page: a pure function."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tocsin.alerts.store.alert_rows import JobUsage
from tocsin.alerts.store.queries import list_usage, open_store
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_kinds import KINDS, JobKind
from tocsin.declare.model.job_report import BUSY_CORES, JobReport
from tocsin.declare.model.names import DETECTOR, PLATFORM_DAG, JobName, dag_of
from tocsin.declare.settings import Settings
from tocsin.supervise.incidents.event_log import Restart
from tocsin.supervise.job_kinds import declared
from tocsin.supervise.job_status import JobStatus, Severity, Snapshot

GROUPS = {
    "problem": "Needs attention",
    "detector": "Detectors",
    "platform": "Platform",
    "unrun": "Drafts and retired",
}
"""The groups of rows in the order of the page, with their titles."""


class JobRow(JobStatus):
    """One job: its status, and what the pages know besides.

    Attributes:
        unexplained: findings of which its stream and its backfill say something else, without a reason, on the days
            that were compared last.
    """

    name: str
    kind: str
    title: str
    dag: str
    stage: str
    declared_bytes: int | None = None
    over_memory: bool = False
    cores: float | None = None
    cores_seconds: float | None = None
    busy: bool = False
    today: JobUsage | None = None
    today_at: float | None = None
    last_restart: Restart | None = None
    unexplained: int = 0
    off: bool | None = None
    may_switch: bool = False
    may_restart: bool = False

    @property
    def group(self) -> str:
        """The one of `GROUPS` that it is in."""
        if self.standing is Severity.PROBLEM:
            return "problem"
        if self.standing is Severity.OFF and self.health == self.stage:
            return "unrun"
        return "detector" if self.kind == DETECTOR else "platform"


def job_row(snapshot: Snapshot, job: str, used: JobUsage | None, load: Load | None, is_paused: bool | None) -> JobRow:
    """Describe a job by a look, what it used on the last day of which that is known, and its load.

    `is_paused` is what Airflow says of its DAG; None if it has not read that yet.
    """
    own, dag, spec = JobName.parse(job), dag_of(job), snapshot.spec(job)
    # To pause the DAG of the platform switches no job: they always run.
    off = None if dag == PLATFORM_DAG else snapshot.switches.off.get(dag) if is_paused is None else is_paused
    status = snapshot.status(job, off=off, found=used.last_finding_at if used else None)
    declared = None if spec is None or isinstance(spec, FlowSpec) else spec.memory
    over = status.runs and declared is not None and status.rss_bytes > declared
    load = load if status.runs else None
    busy = load is not None and load.busy
    is_loud = (over or busy) and status.standing is Severity.OK
    standing = Severity.WARNING if is_loud else status.standing
    return JobRow(
        **dict(status) | {"standing": standing},
        name=own.name or own.kind,
        kind=own.kind,
        title=_title(snapshot.catalog, KINDS.get(own.kind), own.name),
        dag=dag,
        stage=str(spec.stage) if spec else "",
        declared_bytes=declared,
        over_memory=over,
        cores=None if load is None else load.cores,
        cores_seconds=None if load is None else load.seconds,
        busy=busy,
        today=used if used and used.day == datetime.fromtimestamp(snapshot.at, UTC).date() else None,
        off=off,
        may_switch=off is not None and ((spec is not None and spec.stage.runs) or status.runs),
        may_restart=not off and status.fault is None and status.standing is not Severity.OFF,
    )


def _title(catalog: Catalog, kind: JobKind | None, name: str) -> str:
    if kind is None or not kind.folder:
        return kind.title if kind else ""
    spec = declared(kind, catalog).get(name)
    return spec.title if spec else kind.file(name)


# A detector that was paused for longer than this has no known last finding.
_DAYS = 31


def read_usage(settings: Settings) -> dict[str, JobUsage]:
    """Read what each job used on its last day from the alerts DB; errors as of its queries."""
    with closing(open_store(settings)) as database:
        days = list_usage(database, datetime.now(UTC).date() - timedelta(days=_DAYS - 1))
    return {used.job: used for used in reversed(days)}


_WINDOW_SECONDS = 60.0
# The start of a JVM takes more than a core for a while, and is no news.
_SURE_SECONDS = 30.0


@dataclass(frozen=True)
class Load:
    """Cores kept busy on average, and over how many seconds."""

    cores: float
    seconds: float

    @property
    def busy(self) -> bool:
        """Return whether it has been high for long enough."""
        return self.cores >= BUSY_CORES and self.seconds >= _SURE_SECONDS


class Loads:
    """Remembers the signs of life of the last minute."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[JobReport]] = {}

    def take(self, report: JobReport) -> None:
        """Remember `report`, unless it was taken already."""
        reports = self._reports.setdefault(report.job, deque())
        if reports and (reports[-1].pid != report.pid or report.at < reports[-1].at):
            reports.clear()
        if not reports or report.at > reports[-1].at:
            reports.append(report)
        while len(reports) > 2 and (report.at - reports[1].at).total_seconds() >= _WINDOW_SECONDS:
            reports.popleft()

    def of(self, job: str) -> Load | None:
        """The load of `job` over the last minute; with a single sign of life, since its start; None without one."""
        reports = self._reports.get(job)
        if not reports:
            return None
        first, last = reports[0], reports[-1]
        if first is last:
            seconds = (last.at - last.started_at).total_seconds() if last.started_at else 0.0
            return Load(last.cpu_seconds / seconds, seconds) if seconds > 0 else None
        seconds = (last.at - first.at).total_seconds()
        return Load(max(0.0, last.cpu_seconds - first.cpu_seconds) / seconds, seconds)
