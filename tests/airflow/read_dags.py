"""A program for Airflow's environment: reads DAG files as its DAG processor does, and prints what it found as JSON.

`read_dags.py FOLDER [DAG]`; with DAG the files are read as a task of that DAG reads them.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction


def mails(dag: Any) -> set[str]:
    """Who gets a mail of a failed run that carries news: those whom the template of the callback comes to."""
    run = {"conf": {"event": {"job": "indexer"}}}
    callbacks = [back for task in dag.tasks for back in task.on_failure_callback or ()]
    templates = [back.to for back in callbacks if getattr(back, "to", "")]
    owners = {owner for back in callbacks for owner in getattr(back, "owners", {}).values()}
    return owners | {dag.get_template_env().from_string(template).render(dag_run=run) for template in templates}


def days(dag: Any) -> dict[str, Any] | None:
    """What runs a DAG has that has one for each day: those of a Backfill as its page asks for it, and of one night."""
    known = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    if not known.timetable.partitioned:
        return None
    first, last = datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    asked = known.iter_dagrun_infos_between(first, last)
    night = known.timetable.next_dagrun_info_v2(
        last_dagrun_info=None, restriction=TimeRestriction(earliest=first, latest=None, catchup=True)
    )
    return {
        "backfill": [one.partition_key for one in asked],
        "night": [night.run_after.in_timezone("UTC").isoformat(), night.partition_key],
    }


def begins(dag: Any) -> list[Any]:
    """By which times, in Airflow's words, and by events of which assets its runs begin."""
    timetable = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    return [timetable.summary, [key.name for key, _ in timetable.asset_condition.iter_assets()]]


def faulty(dag: Any) -> list[str]:
    """Name the params that keep the button of a form disabled as it opens: required, and empty."""
    required = {name: "null" not in param.schema.get("type", "null") for name, param in dag.params.items()}
    dag.params.validate()
    return [name for name, param in dag.params.items() if required[name] and param.value in (None, "")]


def main() -> None:
    folder, only = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    began = time.monotonic()
    with _airflow_parsing_context_manager(dag_id=only):
        bag = DagBag(folder, collect_dags=True, load_op_links=False)
    seconds = time.monotonic() - began
    found = {
        name: {
            "description": dag.description,
            "doc": dag.doc_md,
            "file": dag.fileloc,
            "max_active_runs": dag.max_active_runs,
            "owner": dag.owner,
            "faulty": faulty(dag),
            "params": {key: param.schema | {"default": param.value} for key, param in dag.params.items()},
            "paused": dag.is_paused_upon_creation,
            "retries": {task.task_id: task.retries for task in dag.tasks},
            "schedule": str(dag.schedule),
            "begins": begins(dag),
            "tags": sorted(dag.tags),
            "rules": {task.task_id: str(task.trigger_rule.value) for task in dag.tasks},
            "days": days(dag),
            "upstream": {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks},
            "outlets": {task.task_id: [one.name for one in task.outlets] for task in dag.tasks if task.outlets},
            "pools": sorted({task.pool for task in dag.tasks}),
            "mail": sorted(mails(dag)),
        }
        for name, dag in bag.dags.items()
    }
    roots = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps({"dags": found, "errors": bag.import_errors, "seconds": seconds, "modules": roots}, default=str))


if __name__ == "__main__":
    main()
