"""The DAGs in whose runs jobs are handled: their switch, their form, their incidents, and the task that acts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, get_parsing_context
from airflow.sdk.exceptions import AirflowFailException

from tocsin.airflow.dags.mail_dag import RunMail
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import DETECTOR, FLOW, JobName
from tocsin.declare.settings import load_settings
from tocsin.supervise.dag_specs import DagSpec, dag_specs
from tocsin.supervise.installed_jobs import InstalledJobs
from tocsin.supervise.job_status import Severity
from tocsin.supervise.switches import read_switches, switched_jobs

RESTART, STATUS = "restart", "status"
_LINES = 50
_ASK = "`restart`: stop the job and start it at once. `status`: describe it in the task's log."

log = structlog.get_logger()


def job_dags() -> list[DAG]:
    """The DAG of each detector, flow and view, broken ones too, and that of all other jobs; in a task its own alone."""
    settings = load_settings()
    only = get_parsing_context().dag_id
    catalog, switches = read_catalog(settings.project), read_switches(settings.state)
    # A DAG that Airflow sees for the first time is paused if its switch was off; or if no switch is known any more.
    off = dict.fromkeys(switched_jobs(catalog), True) if switches.is_broken else switches.off
    made = dag_specs(catalog, off, settings)
    return [_dag(spec) for spec in made if only in (None, spec.dag)]


def _dag(spec: DagSpec) -> DAG:
    with DAG(
        spec.dag,
        description=spec.title,
        doc_md=spec.doc,
        tags=set(spec.tags),
        params=_form(spec),
        schedule=None,
        catchup=False,
        dagrun_timeout=timedelta(minutes=5),
        is_paused_upon_creation=spec.paused,
        default_args={"owner": spec.owner or "tocsin"},
    ) as dag:
        PythonOperator(
            task_id="act",
            python_callable=act,
            op_kwargs={"jobs": spec.jobs},
            execution_timeout=timedelta(minutes=1),
            retries=0,
            on_failure_callback=_mail(spec),
        )
    return dag


def _form(spec: DagSpec) -> dict[str, Param]:
    kind = JobName.parse(spec.jobs[0]).kind
    form = {"action": Param(RESTART, type="string", enum=[RESTART, STATUS], description_md=_ASK)}
    if kind in (DETECTOR, FLOW):
        return form
    return form | {"job": Param(spec.jobs[0], type="string", enum=list(spec.jobs))}


class ActionMail(RunMail):
    """The mail of a run that somebody has asked for; of a run that shows an incident, supervision has written one."""

    def __call__(self, context: Any) -> None:
        """See `RunMail`."""
        if not (context["dag_run"].conf or {}).get("event"):
            super().__call__(context)


def _mail(spec: DagSpec) -> ActionMail:
    """To whom follows from the declared files, never from what a run says of itself."""
    return ActionMail(spec.recipients.get(spec.jobs[-1], ""), "a run failed")


def act(jobs: tuple[str, ...], **context: Any) -> None:
    """Do what the run asks for, with the one of `jobs` that its param `job` names; without that param with the first.

    Raises:
        AirflowFailException: the run is about an incident, its failure is what notifies people; or the job could not
            be started again.
        TransientError, OSError: see `Supervisor.restart`.
    """
    event = (context["dag_run"].conf or {}).get("event")
    if event:
        raise AirflowFailException(f"{event['job']}: {event['condition']}: {event['reason']}")
    params = context["params"]
    job, settings = params.get("job", jobs[0]), load_settings()
    installation = InstalledJobs(settings)
    if params["action"] == RESTART:
        status = installation.status(job)
        if status.fault is not None or status.standing is Severity.OFF:  # stopped it would not be started again
            raise AirflowFailException(f"{job} is not restarted: {status.health}: {status.reason}".rstrip(": "))
        ran = installation.supervisor.restart(job)
        log.info("restart requested" if ran else "start requested, back-off cleared", job=job)
    else:
        _describe(installation, job)


def _describe(installation: InstalledJobs, job: str) -> None:
    status = installation.status(job)
    log.info("health", job=job, standing=str(status.standing), health=status.health, reason=status.reason)
    log.info("status", status=status.model_dump(mode="json"))
    for line in installation.runner.logs(job, _LINES):
        log.info(line)
