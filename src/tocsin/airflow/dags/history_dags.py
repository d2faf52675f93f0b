"""One DAG for each source: read the new events each night, seal and publish the days, run the detectors over them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, CronTriggerTimetable, TriggerRule

from tocsin.airflow.addresses import REPORTS, address_of
from tocsin.airflow.dags.mail_dag import DaysRefused, FailedRunMail, LostDaysMail, RunMail
from tocsin.airflow.tasks.announcement import announcement
from tocsin.airflow.tasks.backfill_task import Backfill
from tocsin.airflow.tasks.program import GatedProgram, Program
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import backfill_dag, history_dag
from tocsin.declare.model.source import Source
from tocsin.declare.settings import load_settings
from tocsin.history.day_rows import DayRows
from tocsin.history.seal_outcomes import refusal, seal_outcomes

_DOC = """
The run at 02:10 UTC and triggered runs read what is new in Kafka, seal all days that need it, judge them and publish
them. If the machine was off at night, the run begins when Airflow starts. `refresh_tables` then makes the tables of
this history that hold tomorrow. `catch_up` backfills the published days that lack findings, with all detectors of the
source in one Spark session.

A day with a critical verdict is not published and fails the run, even if a retry fixes everything else: {owner} gets
one mail with the broken rules and the day's report. The version published before still counts, and other days are
not affected. Later runs fail too, without a mail, until the day is judged again and passes, or somebody accepts it with
`tocsin history publish`. For a warning see the log and the day's report, the button *Quality report* of the task.
`tocsin history list` shows every day.

Each published day is an event of the asset `{asset}` with the day as partition key, for DAGs that are to run when a
day of the source is published; findings of a day are events of `backfill__` and the name of the detector.
"""


def history_dags() -> list[DAG]:
    """The DAG of each source that can be read."""
    catalog = read_catalog(load_settings().project)
    found = []
    for source in catalog.sources.values():
        specs = [spec for spec in catalog.detectors.values() if spec.sources == (source.name,) and spec.stage.runs]
        tables = bool(catalog.history_tables(source.name))
        found.append(_dag(source, {spec.name: spec.owner for spec in specs}, tables=tables))
    return found


def _dag(source: Source, detectors: Mapping[str, str], *, tables: bool) -> DAG:
    mail = RunMail(source.owner, links=[("The reports on all days", address_of(REPORTS))])
    with DAG(
        history_dag(source.name),
        description=f"History of {source.title}",
        doc_md=_DOC.format(owner=source.owner, asset=history_dag(source.name)),
        tags={"history", source.name},
        schedule=CronTriggerTimetable("10 2 * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        on_failure_callback=FailedRunMail(source.owner),
        default_args={"owner": source.owner, "on_failure_callback": mail, "retry_delay": timedelta(minutes=5)},
    ) as dag:
        # It seals all days that need it; what the gate refuses is not sealed again.
        arguments = [source.name, "--run-id={{ run_id }}"]
        seal = GatedProgram(
            task_id="seal", program="seal", arguments=arguments, mail=seal_mail(source.name, source.owner)
        )
        # A run has failed when its last task has: what is refused must not look well because what followed it was.
        all_well = PythonOperator(task_id="all_well", python_callable=check_refused, op_args=[source.name])
        seal >> all_well
        seal >> announcement(source.name, history_dag(source.name), seal.mail)
        _follow_up(source, detectors, seal, all_well, tables=tables)
    return dag


def _follow_up(source: Source, detectors: Mapping[str, str], seal: Any, all_well: Any, *, tables: bool) -> None:
    """Add what comes when `seal` has run, whatever came of it: one day that is refused holds up nothing."""
    before = seal
    if tables:
        program, rule = "refresh_tables", TriggerRule.ONE_DONE
        before = Program(task_id=program, program=program, arguments=[source.name], retries=1, trigger_rule=rule)
        seal >> before >> all_well
    if detectors:
        catch_up = Backfill(task_id="catch_up", owners=detectors, trigger_rule=TriggerRule.ONE_DONE)
        before >> catch_up >> all_well
        for name in detectors:
            catch_up >> announcement(name, backfill_dag(name), catch_up.mail)


def seal_mail(source: str, owner: str) -> LostDaysMail:
    """Make the mail to `owner` of the days of `source` that could not be sealed."""
    return LostDaysMail(
        owners={source: owner},
        outcomes=lambda run_id: seal_outcomes(load_settings(), source, run_id),
        what="history",
        then="A refused day is sealed again when more events land for it, a failed one the next night.",
    )


def check_refused(source: str) -> None:
    """Fail while the gate refuses a day of `source`, with a `DaysRefused` that says what to type."""
    # a run that leaves out such a day must not look well
    if days := DayRows(load_settings(), source).refused():
        raise DaysRefused(refusal(source, days))
