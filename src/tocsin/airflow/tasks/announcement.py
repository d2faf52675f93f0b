"""The task that announces published days to other DAGs, also those of a run in which another day was refused."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import Asset, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from tocsin.airflow.dags.mail_dag import LostDaysMail


def announcement(subject: str, asset: str, mail: LostDaysMail) -> PythonOperator:
    """Make the task that belongs behind the one that publishes, whatever came of that one.

    Args:
        subject: the source or detector. One task for each: Airflow makes an event of every outlet of a task.
        asset: its name; an event has the published day as partition key.
        mail: knows the outcomes of a run.
    """
    return PythonOperator(
        task_id=f"announce__{subject}",
        python_callable=announce,
        op_args=[subject, Asset(asset), mail],
        outlets=[Asset(asset)],
        trigger_rule=TriggerRule.ALL_DONE,
        retries=2,
    )


def announce(subject: str, asset: Asset, mail: LostDaysMail, dag_run: Any, outlet_events: Any) -> None:
    """Give the asset an event for each day that the run has published.

    Raises:
        AirflowSkipException: there is none, and an event without a day would trigger others for nothing.
    """
    days = [
        str(outcome.day)
        for outcome in mail.outcomes(dag_run.run_id)
        if outcome.subject == subject and outcome.published
    ]
    if not days:
        raise AirflowSkipException("no day was published")
    outlet_events[asset].add_partitions(days)
    print("published:", *days)
