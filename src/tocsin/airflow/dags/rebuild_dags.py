"""One DAG for each view that computes it anew: sealed days of history first, then the stream from there."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, get_parsing_context

from tocsin.airflow.dags.mail_dag import FailedRunMail, RunMail
from tocsin.airflow.tasks.program import Program
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import rebuild_dag
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import load_settings

_DOC = """
Computes the view `{name}` anew: the sealed days of `{source}` here, then its job the rest, from the events that Kafka
keeps. Trigger it; no run comes by itself. The view stays as it is, and is kept up to date, until the new rows are all
there: `tocsin view` shows when it has switched.

A run fails if a day is missing that the view needs, neither sealed nor in Kafka: the log of the task names it and
says what to do, and {owner} gets a mail. With `incomplete` such days are left out. A run that was interrupted goes on
where it stopped. `tocsin rebuild {name} --plan` shows what would be read.
"""


def rebuild_dags() -> list[DAG]:
    """The DAG of each view that runs; in a task its own DAG alone."""
    only = get_parsing_context().dag_id
    found = read_catalog(load_settings().project).views.values()
    return [_dag(spec) for spec in found if spec.stage.runs and only in (None, rebuild_dag(spec.name))]


def _dag(spec: ViewSpec) -> DAG:
    with DAG(
        rebuild_dag(spec.name),
        description=f"Rebuild: {spec.title}"[:200],
        doc_md=_DOC.format(name=spec.name, source=", ".join(spec.sources), owner=spec.owner),
        tags={"backfill", "view", *(source[:100] for source in spec.sources)},
        schedule=None,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        params={"incomplete": Param(False, type="boolean", description_md="Leave out days that are nowhere.")},
        on_failure_callback=FailedRunMail(spec.owner),
        default_args={"owner": spec.owner, "retry_delay": timedelta(minutes=5)},
    ) as dag:
        Program(
            task_id="rebuild",
            program="rebuild",
            arguments=[spec.name, "--missing={{ 'leave-out' if params.incomplete else 'refuse' }}"],
            retries=0,
            on_failure_callback=RunMail(spec.owner, "the view was not rebuilt"),
        )
    return dag
