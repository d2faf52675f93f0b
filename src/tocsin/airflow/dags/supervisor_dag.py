"""The DAG that keeps all jobs running: woken by a difference within seconds, and each minute in any case."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable

from tocsin.airflow.component import SUPERVISION_POOL
from tocsin.airflow.diff_trigger import JOB_DIFF
from tocsin.airflow.switch import is_paused
from tocsin.alerts.notify.notices import list_overdue
from tocsin.declare.model.names import MAILS_DAG, dag_of
from tocsin.declare.settings import load_settings
from tocsin.supervise.incidents.conditions import Incident
from tocsin.supervise.installed_jobs import InstalledJobs

SUPERVISOR_DAG = "supervisor"
_UNDER_WAY = ["queued", "running"]
_OVERDUE = "overdue"  # the one run of `mails`: it is cleared and runs again
_DOC = """
Compares what should run (the files in `detectors/` and `sources/`, and the pause switch of each `detector__` DAG) with
the running processes, and acts on the difference. The processes do not belong to Airflow: marking a run of this DAG
failed, clearing it, or stopping Airflow leaves every job as it is, and the next run starts from what it finds.

`look` acts, and watches for conditions that need attention: crash loops, broken files, lag, late events, sources
without input, and more. `tell` starts a run of the job's DAG, which fails, so that the condition shows. If
messages wait that the notifier has not taken within a minute, it starts the run of `mails` that sends them.

Its watcher, in the triggerer, starts again at once what has ended, as long as looks are taken. While this DAG is
paused, no job is started, stopped or restarted.
"""


def supervisor_dag() -> DAG:
    """The DAG."""
    with DAG(
        SUPERVISOR_DAG,
        description="Keeps all jobs running",
        doc_md=_DOC,
        tags={"platform"},
        schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("* * * * *", timezone="UTC"), assets=[JOB_DIFF]),
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=timedelta(minutes=2),
        is_paused_upon_creation=False,
        default_args={"owner": "tocsin", "retries": 0},
    ) as dag:
        look = PythonOperator(
            task_id="look",
            python_callable=_look,
            pool=SUPERVISION_POOL,
            execution_timeout=timedelta(seconds=60),
        )
        TriggerDagRunOperator.partial(
            task_id="tell",
            logical_date=None,
            reset_dag_run=True,  # a mail that could not leave is tried by the same run, once more
            map_index_template="{{ task.trigger_dag_id }}",
        ).expand_kwargs(look.output)
    return dag


def _look(ti: Any) -> list[dict[str, Any]]:
    def has_run(dag: str, run: str, states: list[str] | None = None) -> bool:
        return bool(ti.get_dr_count(dag_id=dag, run_ids=[run], states=states))

    settings = load_settings()
    jobs = InstalledJobs(settings)
    jobs.look(lambda dag: is_paused(ti, dag))
    # A run of history that refuses a day mails by itself, with the links of Airflow.
    shown = [incident for incident in jobs.watch(days=False) if not has_run(dag_of(incident.job), incident.name)]
    runs = [_run_that_fails(incident) for incident in shown]
    if list_overdue(settings) and not has_run(MAILS_DAG, _OVERDUE, _UNDER_WAY):
        runs.append({"trigger_dag_id": MAILS_DAG, "trigger_run_id": _OVERDUE})
    # The DAG of a new file may not be there yet; then a later look starts its run.
    return [run for run in runs if is_paused(ti, run["trigger_dag_id"]) is not None]


def _run_that_fails(incident: Incident) -> dict[str, Any]:
    """Name the run of the DAG of a job that shows an incident by failing."""
    event = {"job": incident.job, "condition": str(incident.condition), "reason": incident.reason}
    return {"trigger_dag_id": dag_of(incident.job), "trigger_run_id": incident.name, "conf": {"event": event}}
