"""The DAGs in whose runs jobs are handled: their switch, their form, their news."""

from __future__ import annotations

import json
from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, get_parsing_context

from tocsin.airflow.actions import DRAIN, RESTART, ROLL_BACK, ROLL_FORWARD, STATUS, act
from tocsin.airflow.cards import Card, cards
from tocsin.airflow.news_mail import NewsMail
from tocsin.catalog import read_catalog
from tocsin.settings import load_settings
from tocsin.supervision.switches import read_switches

_SUBJECT = """\
{% set event = (dag_run.conf or {}).get("event") -%}
[tocsin] {% if event %}{{ event.job }}: {{ event.condition }}{% else %}{{ dag.dag_id }}: a run failed{% endif %}"""
_PAGE = """\
{% set event = (dag_run.conf or {}).get("event") -%}
{% if event -%}
<p><b>{{ event.job | e }}</b>: {{ event.condition | e }}.</p>
<p>{{ event.reason | e }}</p>
<p>{{ event.advice | e }}</p>
{% if event.commands %}<pre>{{ event.commands | join("\\n") | e }}</pre>{% endif %}
<p>The end of its log (<code>{{ event.log | e }}</code>):</p>
<pre>{{ event.lines | join("\\n") | e }}</pre>
{%- else -%}
<p>{{ (exception or "The task failed") | string | e }}</p>
{%- endif %}
<p><a href="{{ ti.log_url | e }}">The run in Airflow</a></p>
"""
_ASK = "`restart`: stop the job and start it at once. `status`: describe it in the task's log."
_ASK_DRAIN = (
    "`drain`: read all that there is now, stop then, and stay so until a `restart`, or until it is paused and unpaused."
)
_ASK_VERSION = "`roll back`: run an earlier version until the file changes. `roll forward`: run the file again."
_JOB = '((dag_run.conf or {}).get("event") or {}).get("job")'


def job_dags() -> list[DAG]:
    """The DAG of each detector, broken ones included, and that of all other jobs; in a task its own DAG alone."""
    settings = load_settings()
    only = get_parsing_context().dag_id
    off = read_switches(settings.state).off
    made = cards(read_catalog(settings.project), off, settings.alerts.urgent_recipients)
    return [_dag(card) for card in made if only in (None, card.dag)]


def _dag(card: Card) -> DAG:
    with DAG(
        card.dag,
        description=card.title,
        doc_md=card.doc,
        tags=set(card.tags),
        params=_form(card),
        schedule=None,
        catchup=False,
        dagrun_timeout=timedelta(minutes=5),
        is_paused_upon_creation=card.paused,
        default_args={"owner": card.owner or "tocsin"},
    ) as dag:
        PythonOperator(
            task_id="act",
            python_callable=act,
            op_kwargs={"jobs": card.jobs},
            execution_timeout=timedelta(minutes=1),
            retries=0,
            on_failure_callback=_tell(card),
        )
    return dag


def _form(card: Card) -> dict[str, Param]:
    """What can be asked of the jobs of a DAG. Only a detector has versions to go back to."""
    if len(card.jobs) > 1:
        job = Param(card.jobs[0], type="string", enum=list(card.jobs))
        return {"action": Param(RESTART, type="string", enum=[RESTART, STATUS], description_md=_ASK), "job": job}
    actions = [RESTART, DRAIN, STATUS, ROLL_BACK, ROLL_FORWARD]
    return {
        "action": Param(RESTART, type="string", enum=actions, description_md=f"{_ASK} {_ASK_DRAIN} {_ASK_VERSION}"),
        "version": Param("", type="string", title="version", description_md="To roll back to; empty: the one before."),
    }


def _tell(card: Card) -> NewsMail:
    """What a failed run does: to whom follows from the declared files, never from what a run says of itself."""
    if not card.recipients:
        return NewsMail(to="", subject=_SUBJECT, html_content=_PAGE)
    known = json.dumps(card.recipients)
    otherwise = json.dumps(card.recipients[card.jobs[-1]])
    return NewsMail(to=f"{{{{ {known}.get({_JOB}, {otherwise}) }}}}", subject=_SUBJECT, html_content=_PAGE)
