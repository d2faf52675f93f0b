"""A program for Airflow's environment: what tasks decide before they do anything, as JSON.

`ask_tasks.py asked RUNS`: the day that each run is about; RUNS is a JSON array of type, partition key and param.
`ask_tasks.py due DAYS`: whether a backfill has something to do when `tocsin backfill --plan` writes DAYS.
`ask_tasks.py announced OUTCOMES`: the partition keys of the events that a run of `history__logins` makes, and what a
    DAG of others takes from them; OUTCOMES is a JSON array of subjects and whether their day was published.
`ask_tasks.py restart JOB`: why a restart that is asked for fails; empty if it does not.
`ask_tasks.py runs DAG...`: the runs that a look starts for two incidents; of each DAG there is a run already.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from types import SimpleNamespace
from typing import Any
from unittest import mock

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from tocsin.airflow.dags import job_dags, supervisor_dag
from tocsin.airflow.tasks import backfill_task
from tocsin.airflow.tasks.announcement import announce
from tocsin.history.seal_outcomes import DayOutcome
from tocsin.supervise.incidents.conditions import Incident
from tocsin.supervise.job_states import Condition


def context(run_type: str, partition_key: str | None, day: str | None) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(run_type=run_type, partition_key=partition_key), "params": {"day": day}}


def due(days: str) -> bool:
    with mock.patch.object(backfill_task, "tocsin", return_value=days):
        return backfill_task.is_due("failed_logins", context("manual", None, None))


def runs(*there: str) -> list[dict[str, Any]]:
    incidents = [
        Incident(job="detector:failed_logins", condition=Condition.CRASH_LOOP, reason="4 failures", at=1, last_at=1),
        Incident(job="notifier", condition=Condition.NO_ROOM, reason="", at=1, last_at=1),
    ]
    jobs = SimpleNamespace(look=lambda is_off: None, watch=lambda days: incidents)
    task = SimpleNamespace(
        get_dr_count=lambda dag_id, run_ids, states: int(dag_id in there),
        get_dag=lambda dag: SimpleNamespace(is_paused=False),
    )
    with mock.patch.object(supervisor_dag, "InstalledJobs", return_value=jobs):
        look = supervisor_dag.supervisor_dag().get_task("look")
        found: list[dict[str, Any]] = look.python_callable(task)
    return found


def restart(job: str) -> str:
    try:
        job_dags.act((job,), dag_run=SimpleNamespace(conf={}), params={"action": "restart"})
    except AirflowFailException as error:
        return str(error)
    return ""


def announced(outcomes: list[tuple[str, bool]]) -> dict[str, Any]:
    asset = Asset("history__logins")
    days = [DayOutcome(name, date(2026, 1, 31 - n), good, "", None) for n, (name, good) in enumerate(outcomes)]
    mail: Any = SimpleNamespace(outcomes=lambda run: days)
    events = OutletEventAccessors()
    try:
        announce("logins", asset, mail, SimpleNamespace(run_id="mine"), events)
    except AirflowSkipException:
        return {"keys": None}
    with DAG("consumer", schedule=PartitionedAssetTimetable(assets=asset)) as dag:
        pass
    known = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    ((key, _),) = known.asset_condition.iter_assets()
    (day,) = keys = sorted(events[asset].partition_keys)
    mapped = known.get_partition_mapper(name=key.name, uri=key.uri).to_downstream(day)
    return {"keys": keys, "consumer": [key.name, mapped]}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "asked":
        print(json.dumps([backfill_task.requested_day(context(*run)) for run in json.loads(words[0])]))
    elif what == "restart":
        print(json.dumps(restart(*words)))
    elif what == "announced":
        print(json.dumps(announced(json.loads(words[0]))))
    else:
        print(json.dumps(due(*words) if what == "due" else runs(*words)))
