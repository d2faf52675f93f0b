"""The task that backfills detectors of one source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowSkipException

from tocsin.airflow.switch import is_paused
from tocsin.airflow.tasks.backfill_mail import BackfillMail
from tocsin.airflow.tasks.command import tocsin
from tocsin.airflow.tasks.program import GatedProgram
from tocsin.airflow.tasks.run_days import DayOutcome, asked_day, due_days, outcomes
from tocsin.model.names import backfill_dag
from tocsin.project.settings import load_settings

DAY = "day"
"""The param of a DAG that names the one day to run."""


class Backfill(GatedProgram):
    """Runs `spark_jobs/backfill.py`: the day that the run is about, or all days that need it.

    Without a day it leaves out detectors whose own DAG is paused. What a gate holds is not tried again, and other days
    are published all the same.
    """

    def __init__(self, *, owners: Mapping[str, str], **options: Any) -> None:
        """Make the task.

        Args:
            owners: the detectors, all of one source, and the address of whose each is.
            options: of any operator.
        """
        super().__init__(program="backfill", retries=1, on_failure_callback=BackfillMail(owners), **options)
        self.owners = owners

    def execute(self, context: Any) -> None:
        """See `SparkSubmitOperator.execute`."""
        day, run_id = asked(context), context["dag_run"].run_id
        names = [name for name in self.owners if day or not is_paused(context["ti"], backfill_dag(name))]
        if not names:
            raise AirflowSkipException("their own DAGs are paused")
        self.application_args = [*names, f"--run-id={run_id}", *([f"--day={day}"] if day else [])]
        super().execute(context)

    def outcomes(self, run_id: str) -> list[DayOutcome]:
        """See `GatedProgram.outcomes`."""
        return outcomes(load_settings(), self.owners, run_id)


def is_due(detector: str, context: Any) -> bool:
    """Tell whether a run has something to do. Starts no Spark."""
    if asked(context) is not None:
        return True
    due = due_days(tocsin("backfill", "--detector", detector, "--plan", "--json"))
    for day, why in due.items():
        print(f"{day}: {why}")
    return bool(due)


def asked(context: Any) -> str | None:
    """The day that a run is about; None for one that is about all days that need it."""
    run = context["dag_run"]
    return asked_day(run.run_type, run.partition_key, context["params"].get(DAY))
