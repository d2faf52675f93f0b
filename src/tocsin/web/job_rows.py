"""A look at the jobs, and what else is known of them, as the rows of a page: a pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_kinds import KINDS, JobKind
from tocsin.declare.model.names import DETECTOR, PLATFORM_DAG, JobName, dag_of
from tocsin.declare.model.sizes import printable
from tocsin.supervise.dag_specs import declared_facts
from tocsin.supervise.incidents.process_ends import ProcessEnd, last_restart
from tocsin.supervise.job_kinds import declared
from tocsin.supervise.job_status import Severity, Snapshot
from tocsin.web.page_shapes import Fact, JobRow
from tocsin.web.usage_query import JobActivity, Load


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """The facts known beside a look.

    Attributes:
        activity, activity_at: what each job took, and when that was read; empty and None when it is not known.
        unexplained: of a detector, see `JobRow`.
        ends: of the processes of a job, the newest first.
        off: by DAG, whether it is paused, as Airflow says; a DAG that Airflow has not read yet is missing.
    """

    activity: Mapping[str, JobActivity] = field(default_factory=dict)
    activity_at: float | None = None
    load: Callable[[str], Load | None] = field(default=lambda job: None)
    unexplained: Callable[[str], int] = field(default=lambda detector: 0)
    ends: Callable[[str], Sequence[ProcessEnd]] = field(default=lambda job: ())
    off: Mapping[str, bool] = field(default_factory=dict)


def rows(snapshot: Snapshot, facts: RowFacts) -> list[JobRow]:
    """All jobs: problems first, then detectors, then the platform's, then what its stage keeps from running."""
    return sorted((_row(snapshot, job, facts) for job in snapshot.jobs), key=_rank)


def shown_facts(spec: DetectorSpec, memory_limit: int) -> list[Fact]:
    """List what the file of a detector declares, and how many bytes its job may hold."""
    origin = " (by the settings)" if spec.memory is None else ""
    memory = f"restarted above {memory_limit / 1e6:,.0f} MB{origin}"
    facts = {"what it catches": spec.doc, **declared_facts(spec), "memory": memory}
    return [Fact(name=name, text="\n".join(map(printable, text.split("\n")))) for name, text in facts.items()]


def _rank(row: JobRow) -> int:
    """The place of a row among the others; those of one rank keep their order."""
    if row.standing is Severity.PROBLEM:
        return 0
    if row.standing is Severity.OFF and row.health == row.stage:
        return 3
    return 1 if row.kind == DETECTOR else 2


def _row(snapshot: Snapshot, job: str, known: RowFacts) -> JobRow:
    own, dag, spec = JobName.parse(job), dag_of(job), snapshot.spec(job)
    # To pause the DAG of the platform switches no job: they always run.
    off = None if dag == PLATFORM_DAG else known.off.get(dag, snapshot.switches.off.get(dag))
    activity, load = known.activity.get(job, JobActivity()), known.load(job)
    status = snapshot.status(job, off=off, found=activity.last_finding_at)
    declared = None if spec is None or isinstance(spec, FlowSpec) else spec.memory
    over = status.runs and declared is not None and status.rss_bytes > declared
    load = load if status.runs else None
    busy = load is not None and load.busy
    is_loud = (over or busy) and status.standing is Severity.OK
    shown = {"reason": printable(status.reason), "standing": Severity.WARNING if is_loud else status.standing}
    return JobRow(
        **dict(status) | shown,
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
        today=activity.today,
        today_at=known.activity_at,
        unexplained=known.unexplained(own.name) if own.kind == DETECTOR else 0,
        last_restart=last_restart(known.ends(job)),
        off=off,
        may_switch=off is not None and ((spec is not None and spec.stage.runs) or status.runs),
        may_restart=not off and status.fault is None and status.standing is not Severity.OFF,
    )


def _title(catalog: Catalog, kind: JobKind | None, name: str) -> str:
    if kind is None or not kind.folder:
        return kind.title if kind else ""
    spec = declared(kind, catalog).get(name)
    return printable(spec.title) if spec else kind.file(name)
