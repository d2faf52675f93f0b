"""The task that announces published days to other DAGs, also those of a run in which another day was refused."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import Asset, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from tocsin.airflow.dags.mail_dag import LostDaysMail


def announcement(subject: str, asset: str, mail: LostDaysMail) -> PythonOperator:
    """Make the task that belongs behind the one that publishes, whatever came of that one.

    Each source or detector has its own, since Airflow makes an event of every outlet of a task. An event of `asset` has
    the published day as partition key.
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
    """Give the asset an event for each day that the run has published; without any raises AirflowSkipException."""
    days = [
        str(outcome.day)
        for outcome in mail.outcomes(dag_run.run_id)
        if outcome.subject == subject and outcome.published
    ]
    if not days:
        # an event without a day would trigger others for nothing
        raise AirflowSkipException("no day was published")
    outlet_events[asset].add_partitions(days)
    print("published:", *days)
