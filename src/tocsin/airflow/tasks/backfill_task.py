"""The task that backfills detectors of one source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from tocsin.airflow.dags.mail_dag import LostDaysMail
from tocsin.airflow.switch import is_paused
from tocsin.airflow.tasks.command import tocsin
from tocsin.airflow.tasks.program import GatedProgram
from tocsin.declare.model.names import backfill_dag
from tocsin.declare.settings import load_settings
from tocsin.history.backfill.backfill_ledger import backfill_outcomes

DAY = "day"  # the param of a DAG that names the one day to run


class Backfill(GatedProgram):
    """Runs `spark_jobs/backfill.py`: the day that the run is about, or all days that need it.

    Without a day it leaves out detectors whose own DAG is paused. What a gate holds is not tried again, and other days
    are published all the same.
    """

    def __init__(self, *, owners: Mapping[str, str], **options: Any) -> None:
        """`owners` has the address of the owner for each of the detectors, which are all of one source."""
        super().__init__(program="backfill", mail=backfill_mail(owners), **options)
        self.owners = owners

    def execute(self, context: Any) -> None:
        """See `SparkSubmitOperator.execute`."""
        day, run_id = requested_day(context), context["dag_run"].run_id
        names = [name for name in self.owners if day or not is_paused(context["ti"], backfill_dag(name))]
        if not names:
            raise AirflowSkipException("their DAGs are paused")
        self.application_args = [*names, f"--run-id={run_id}", *([f"--day={day}"] if day else [])]
        super().execute(context)


def is_due(detector: str, context: Any) -> bool:
    """Return whether a run has something to do. Starts no Spark."""
    if requested_day(context) is not None:
        return True
    days = json.loads(tocsin("backfill", "--detector", detector, "--plan", "--json"))
    due = [day for day in days if day["state"] == "due"]
    for day in due:
        print(f"{day['day']}: {day['why']}")
    return bool(due)


def requested_day(context: Any) -> str | None:
    """Return the day that a run is about: that of a Backfill, else that of the form; None for all that need it.

    The run of the night has a day, too, because its DAG has one run for each day; it is about all.
    """
    run = context["dag_run"]
    return None if run.run_type == "scheduled" else run.partition_key or context["params"].get(DAY) or None


def backfill_mail(owners: Mapping[str, str]) -> LostDaysMail:
    """Make the mail of the days of detectors, given with the address of whose each is."""
    return LostDaysMail(
        owners=owners,
        outcomes=lambda run_id: backfill_outcomes(load_settings(), owners, run_id),
        what="backfill",
        then="A held day runs again when its events or its detector change, a failed one the next night.",
    )
