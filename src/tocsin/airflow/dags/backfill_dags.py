"""One DAG for each detector that runs it over days of history: one day, a range of days, or what is due each night."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import DAG, CronPartitionTimetable, Param, get_parsing_context
from airflow.sdk.exceptions import AirflowSkipException

from tocsin.airflow.component import BACKFILL_POOL
from tocsin.airflow.dags.mail_dag import FailedRunMail, RunMail
from tocsin.airflow.tasks.announcement import announcement
from tocsin.airflow.tasks.backfill_task import DAY, Backfill, backfill_mail, is_due, requested_day
from tocsin.airflow.tasks.command import tocsin
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.names import backfill_dag
from tocsin.declare.settings import load_settings
from tocsin.history.backfill.backfill_ledger import Backfills

# A Backfill in Airflow's page goes from midnight to midnight, so the last day is in it only if its run is stamped with
# a midnight. Midnight of this zone is 04:00 UTC, when the days of the night are sealed. Its name means UTC-4.
_ZONE = "Etc/GMT+4"
_DOC = """
Runs `{name}` over whole days of history and publishes its findings, day by day. It pages nobody and sends no e-mail
of an alert.

| to run | do |
|---|---|
| a range of days | Trigger, **Backfill**, first to last UTC day; *All Runs* also repeats earlier runs |
| one day | Trigger, **Single Run**, with the day |
| all days that need it | Trigger, **Single Run**, without a day, as the nightly run does at 04:00 UTC |

A day needs a run if it never ran, failed, ran with another version of the detector, or was sealed again since.
`history__{source}` runs these days each night, and this DAG any that are left. While this DAG is paused, neither does.

The task `parity` then compares the stream's findings of that day, or of the latest one, with the published ones, and
gives a reason for each difference (late events, another version, missing data). A difference without a reason fails
the run, and {owner} gets a mail.

A run is red if the quality gate held the findings of a day, or a day failed. The version published before still
counts, other days are published, and {owner} gets one mail. For a warning see the log of the task and the report, the
button *Quality report* of the task `run`.

Each published day is an event of the asset `backfill__{name}` with the day as partition key.
"""
_DIFFERS = "stream and backfill differ, or could not be compared"
_DIFFERENCES = (
    "The backfill's findings count. Look into the difference soon: the events that explain it are not kept for ever. "
    "The command shows it again.",
)


class DifferenceMail:
    """The mail of a comparison that found a difference, or could not be made. It is a callback of Airflow's."""

    def __init__(self, detector: str, owner: str) -> None:
        self.detector, self.owner = detector, owner

    def __call__(self, context: Any) -> None:
        """Let the mail leave, with the day that was compared."""
        command = ["tocsin", *_comparison(self.detector, context)]
        more = {"paragraphs": _DIFFERENCES, "commands": [shlex.join(command)]}
        RunMail(self.owner, _DIFFERS, **more)(context)


def backfill_dags() -> list[DAG]:
    """The DAG of each detector that runs, and can run on history; in a task its own DAG alone."""
    only = get_parsing_context().dag_id
    found = [spec for spec in read_catalog(load_settings().project).detectors.values() if not spec.stream_only]
    return [_dag(spec) for spec in found if spec.stage.runs and only in (None, backfill_dag(spec.name))]


def _dag(spec: DetectorSpec) -> DAG:
    owners = {spec.name: spec.owner}
    hint = "The one UTC day to run. Empty: all days that need it. A Backfill takes its own dates."
    with DAG(
        backfill_dag(spec.name),
        description=f"Backfill: {spec.title}"[:200],
        doc_md=_DOC.format(name=spec.name, source=spec.sources[0], owner=spec.owner),
        tags={"backfill", str(spec.stage), spec.sources[0][:100]},
        schedule=CronPartitionTimetable("0 0 * * *", timezone=_ZONE, run_offset=-1, key_format="%Y-%m-%d"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        params={DAY: Param(None, type=["null", "string"], format="date", description_md=hint)},
        on_failure_callback=FailedRunMail(spec.owner),
        default_args={"owner": spec.owner, "retry_delay": timedelta(minutes=5)},
    ) as dag:
        # In the pool, so that it looks when what runs before it has ended.
        due = ShortCircuitOperator(
            task_id="due",
            python_callable=_due,
            op_args=[spec.name],
            pool=BACKFILL_POOL,
            retries=1,
            on_failure_callback=backfill_mail(owners),
            execution_timeout=timedelta(minutes=10),
            ignore_downstream_trigger_rules=False,
        )
        parity = PythonOperator(
            task_id="parity",
            python_callable=_parity,
            op_args=[spec.name],
            pool=BACKFILL_POOL,
            retries=1,
            trigger_rule="none_failed",  # with nothing to run there is still what the night has published
            on_failure_callback=DifferenceMail(spec.name, spec.owner),
            execution_timeout=timedelta(hours=1),
        )
        run = Backfill(task_id="run", owners=owners)
        due >> run >> [parity, announcement(spec.name, backfill_dag(spec.name), run.mail)]
    return dag


def _due(detector: str, **context: Any) -> bool:
    return is_due(detector, context)


def _parity(detector: str, **context: Any) -> None:
    """Compare the day of the run, else the latest that is published; a difference without a reason is a failure."""
    if not Backfills(load_settings(), detector).read().published:
        raise AirflowSkipException("no day is published yet")
    print(tocsin(*_comparison(detector, context)))


def _comparison(detector: str, context: Mapping[str, Any]) -> list[str]:
    day = requested_day(context) or max(Backfills(load_settings(), detector).read().published, default=None)
    return ["parity", "--detector", detector, *(["--day", str(day)] if day else [])]
