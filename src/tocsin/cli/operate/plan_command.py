"""`tocsin plan`: what a deploy of the present files would do to each job, and which inputs changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.check_command import plan_all
from tocsin.cli.output import note, write_list
from tocsin.cli.project import load_project
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import compute_job, detector_job

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import JobPlanShape
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.settings import Settings
    from tocsin.supervise.planning.deploy_plan import JobPlan, StateNames

_Spark = Annotated[bool, typer.Option("--spark", help="Have Spark plan all code, to know exactly whose state fits.")]
_Job = Annotated[str | None, typer.Argument(help="Only this job, such as detector:failed_logins.")]


def plan(job: _Job = None, spark: _Spark = False, json: options.Json = False) -> None:
    """List what a deploy of the present files would do to each job, and which of its inputs changed.

    They are compared with what each job runs with, or ran with last; for files elsewhere, name the state folder of the
    installation in TOCSIN_STATE. Nothing is changed, and Kafka is not asked. "restart" keeps the state; "new state"
    begins with a warm-up from recent events. Whether changed code fits the state of a job, only Spark's plan tells: see
    --spark.
    """
    from tocsin.cli.json_shapes import JobPlanShape

    every = _plans(spark)
    plans = [plan for plan in every if job in (None, plan.job)]
    if job is not None and not plans:
        near = nearest(job, [plan.job for plan in every])
        raise ConfigError([Fault("plan", f"there is no job '{job}' here", nearest=near)])
    rows = [JobPlanShape(job=plan.job, effect=plan.effect, changed=list(plan.changed)) for plan in plans]
    write_list(rows, ("JOB", "DEPLOY", "CHANGED"), _row, json=json, empty="no jobs: sources/ and detectors/ are empty")
    if not spark and any(plan.effect == "restart or new state" for plan in plans):
        note("which it is, only Spark's plan tells: tocsin plan --spark")


def _row(shown: JobPlanShape) -> tuple[object, ...]:
    return (shown.job, shown.effect, ", ".join(shown.changed))


def _plans(spark: bool) -> list[JobPlan]:
    from tocsin.supervise.installed_jobs import process_reader
    from tocsin.supervise.job_kinds import desired_jobs
    from tocsin.supervise.job_status import look
    from tocsin.supervise.planning.deploy_plan import Deploy, plan_job
    from tocsin.supervise.planning.desired_inputs import read_starts
    from tocsin.supervise.switches import not_stopped

    settings, catalog = load_project()
    desired = desired_jobs(catalog, settings)
    snapshot = look(settings, catalog, process_reader(settings)())
    jobs = [*desired, *(job for job in snapshot.jobs if job not in desired)]
    deploy = Deploy(
        desired=desired,
        stopped=frozenset(desired.keys() - not_stopped(settings.state, desired).keys()),
        starts={job: read_starts(settings.state, job) for job in jobs},
        snapshot=snapshot,
        states=_states(settings, catalog) if spark else None,
    )
    return [plan_job(deploy, job) for job in jobs]


def _states(settings: Settings, catalog: Catalog) -> StateNames:
    from tocsin.platform.storage.job_folders import stored_folder
    from tocsin.supervise.planning.deploy_plan import StateNames
    from tocsin.views.rebuild.rebuild_request import next_build, read_rebuild

    found = plan_all(settings, catalog)
    # A job plans with the rows of its tables, and its plan names where they are; what joins some is left out here.
    alone = {name: plan for name, plan in found.detectors.items() if not catalog.detectors[name].tables}
    names = {detector_job(name): plan.fingerprint for name, plan in alone.items()}
    for name, view in found.views.items():
        if not catalog.views[name].tables:
            base, version = stored_folder(settings, compute_job(name)), catalog.views[name].version
            names[compute_job(name)] = next_build(base, version, view.fingerprint, read_rebuild(settings.state, name))
    present = {
        job: frozenset(path.parent.name for path in stored_folder(settings, job).glob("*/start.json")) for job in names
    }
    return StateNames(
        next=names,
        present=present,
        faults=_by_job(settings, catalog, found.faults),
    )


def _by_job(settings: Settings, catalog: Catalog, faults: list[Fault]) -> dict[str, list[str]]:
    from tocsin.supervise.job_kinds import names

    found: dict[str, list[str]] = {}
    for kind in (kind for kind in KINDS.values() if kind.folder):
        for name in names(kind, catalog):
            place = str(settings.project / kind.file(name))
            told = [str(fault).replace(f"{settings.project}/", "") for fault in faults if fault.where == place]
            if told:
                found[kind.job(name)] = told
    return found
