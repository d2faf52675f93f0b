"""Describe the DAGs of jobs as plain data, read from the declared files without importing one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.detector_guide import DetectorGuide
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import DETECTOR, FLOW, INDEXER, PLATFORM_DAG, JobName, dag_of
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.supervise.incidents.watch import owners
from tocsin.supervise.job_kinds import broken
from tocsin.supervise.switches import switched_jobs

BROKEN = "broken"
_LONGEST = 200
_PAUSED = "Pausing stops, and unpausing starts:"
_SHOWN = "A failed run here shows a condition of one of them.\n"
_SWITCH = """
---
| do | and the job |
|---|---|
| pause, unpause | is stopped, is started |
| Trigger, `restart` | is restarted at once; that does not count as a failure |
| Trigger, `status` | is described in the log of the task |
| edit the file | is replaced, if its computation has changed |

A failed run here shows a condition, such as a crash loop, lag or late events. The owner gets one mail about it.
"""


@dataclass(frozen=True, kw_only=True)
class DagSpec:
    """One DAG in whose runs jobs are handled.

    Attributes:
        recipients: of mails about each job, separated by commas; a job about which nobody gets mail is missing.
    """

    dag: str
    jobs: tuple[str, ...]
    title: str
    owner: str = ""
    recipients: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...]
    doc: str
    paused: bool = False


def dag_specs(catalog: Catalog, off: Mapping[str, bool], settings: Settings) -> list[DagSpec]:
    """A DAG for each detector, flow and view, broken ones included, and one for all other jobs, in order of their ids.

    `off` says by DAG whether it was paused when it was seen last.
    """
    made = [_dag_spec(catalog, dag, jobs, off.get(dag, False)) for dag, jobs in switched_jobs(catalog).items()]
    return sorted([*made, _platform(catalog, settings)], key=lambda dag: dag.dag)


def _dag_spec(catalog: Catalog, dag: str, jobs: Sequence[str], paused: bool) -> DagSpec:
    own = JobName.parse(jobs[0])
    kind = KINDS[own.kind]
    error = broken(kind, catalog).get(own.name)
    if error is not None:
        return _broken_dag(dag, jobs, kind.file(own.name), error, paused)
    if own.kind == DETECTOR:
        spec = catalog.detectors[own.name]
        return _declared(spec, jobs, declared_facts(spec), _SWITCH, paused=paused)
    return _code(catalog.flow(own.name) if own.kind == FLOW else catalog.view(own.name), dag, jobs, paused)


def _code(spec: FlowSpec | ViewSpec, dag: str, jobs: Sequence[str], paused: bool) -> DagSpec:
    target = {"to": spec.to} if isinstance(spec, FlowSpec) else {"key": ", ".join(spec.key), "sink": spec.sink}
    facts = {"source": ", ".join(spec.sources), **target, "stage": str(spec.stage), "owner": spec.owner}
    listed = "\n".join(f"- `{job}`" for job in jobs)
    does = _SWITCH if isinstance(spec, FlowSpec) else f"\n{_PAUSED}\n\n{listed}\n\n{_SHOWN}"
    return _declared(spec, jobs, facts, does, paused=paused)


def _declared(
    spec: DetectorSpec | FlowSpec | ViewSpec, jobs: Sequence[str], facts: Mapping[str, str], does: str, *, paused: bool
) -> DagSpec:
    dag = dag_of(jobs[0])
    table = "\n".join(f"| {key} | {value.replace('|', '&#124;')} |" for key, value in facts.items())
    return DagSpec(
        dag=dag,
        jobs=tuple(jobs),
        title=spec.title[:_LONGEST],
        owner=spec.owner,
        recipients=dict.fromkeys(jobs, spec.owner),
        tags=(dag.partition("__")[0], str(spec.stage), *(name[:100] for name in spec.sources)),
        doc=f"{spec.doc}\n\n| | |\n|---|---|\n{table}\n{does}{_tab(dag)}{_text_of(spec)}",
        paused=paused,
    )


def declared_facts(spec: DetectorSpec) -> dict[str, str]:
    """List what the file of a detector declares, by what people call it."""
    guide = DetectorGuide.of(spec)
    return {
        "source": ", ".join(spec.sources),
        "entity": ", ".join(spec.entity),
        "window": spec.window_text,
        "limits": guide.limits_text,
        "stage": str(spec.stage),
        **guide.facts,
        "file": f"detectors/{spec.path.name}",
        "version": spec.version,
    }


def _broken_dag(dag: str, jobs: Sequence[str], file: str, error: ConfigError, paused: bool) -> DagSpec:
    faults = "\n".join(f"- {fault}" for fault in error.faults)
    what = "The file has faults. A running job keeps running, but is not restarted."
    return DagSpec(
        dag=dag,
        jobs=tuple(jobs),
        title=f"Broken: {error.faults[0]}"[:_LONGEST],
        tags=(dag.partition("__")[0], BROKEN),
        doc=f"# {file} is broken\n\n{what}\n\n{faults}\n{_tab(dag)}",
        paused=paused,
    )


def _platform(catalog: Catalog, settings: Settings) -> DagSpec:
    recipients = {job: to for job, to in owners(catalog, settings).items() if dag_of(job) == PLATFORM_DAG}
    jobs = tuple(recipients)
    listed = "\n".join(f"- `{job}`" for job in jobs)
    doc = f"The platform's jobs, which always run: to pause this DAG stops none of them.\n\n{listed}\n\n{_SHOWN}"
    return DagSpec(
        dag=dag_of(INDEXER),
        jobs=jobs,
        title="All jobs that nobody switches off: ingest, indexer, notifier, drain and web",
        recipients=recipients,
        tags=("platform",),
        doc=doc + _tab(dag_of(INDEXER)),
    )


def _text_of(spec: DetectorSpec | FlowSpec | ViewSpec) -> str:
    """Show the file that declares `spec`: Airflow's tab Code shows the one that makes the DAGs of all."""
    try:
        text = spec.path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # removed since it was read; the next look finds no DAG for it
        return ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"\n## {spec.path.parent.name}/{spec.path.name}\n\n{fence}python\n{text.rstrip()}\n{fence}\n"


def _tab(dag: str) -> str:
    """Link to the jobs page of `dag`; Airflow's pages have its own address as their base."""
    return f"\nFor its health, crash history and the end of its log see the tab [Job](dags/{dag}/plugin/job).\n"
