"""A program for Airflow's environment: the mails of a night or a backfill that has failed.

`mail_lost_days.py TASK RUN OWNERS` fails as the task `seal` or `catch_up` does; OWNERS is a JSON object of one source,
or of detectors, to address. `mail_lost_days.py parity FOLDER` runs the task `parity` of the first detector with the
`tocsin` of another environment. `mail_lost_days.py pass_over RUN` is a run of `history__logins` that leaves
refused days out, and prints what its tasks say. `mail_lost_days.py lose RUN` is the end of a run of that detector's
backfill whose task was killed.
`mail_lost_days.py send` does what a look of the supervisor leads to a minute later.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from tocsin.airflow.dags.backfill_dags import backfill_dags
from tocsin.airflow.dags.history_dags import history_dags, seal_mail
from tocsin.airflow.dags.mail_dag import send
from tocsin.airflow.tasks.backfill_task import backfill_mail
from tocsin.declare.model.errors import TransientError


def fail(task: str, run_id: str, owners: str) -> None:
    about = {"dag_id": "history__logins", "run_id": run_id, "task_id": task, "try_number": 1}
    context = {
        "dag": DAG("history__logins", schedule=None),
        "dag_run": SimpleNamespace(run_id=run_id),
        "ti": SimpleNamespace(log_url="http://airflow/run", **about),
        "exception": RuntimeError("Error code is: <2>"),
    }
    owner_of = json.loads(owners)
    tell = backfill_mail(owner_of) if task == "catch_up" else seal_mail(*owner_of.popitem())
    tell(context)


def lose(run_id: str) -> None:
    """The run has failed, as Airflow's DAG processor tells the DAG when no task could."""
    dag = next(one for one in backfill_dags() if one.dag_id == "backfill__failed_logins")
    tell = dag.on_failure_callback
    tell({"dag": dag, "run_id": run_id, "reason": "task_failure"})


def pass_over(run_id: str) -> None:
    """Nothing is wrong with what is sealed. The run fails if a day is refused, and says so to the DAG."""
    dag = next(one for one in history_dags() if one.dag_id == "history__logins")
    run, said, task = SimpleNamespace(run_id=run_id), {}, dag.get_task("all_well")
    try:
        task.python_callable(*task.op_args)
    except AirflowException as error:
        said["all_well"] = str(error)
        ti = SimpleNamespace(log_url="http://airflow/run", task_id="all_well", try_number=1)
        for tell in task.on_failure_callback:
            tell({"dag": dag, "dag_run": run, "ti": ti, "exception": error})
    if said:
        dag.on_failure_callback({"dag": dag, "run_id": run_id, "reason": "task_failure"})
    print(json.dumps(said))


def compare(folder: str) -> None:
    """Fails unless the task does, and mails as it would."""
    dag = backfill_dags()[0]
    task = dag.get_task("parity")
    about = {"dag_id": dag.dag_id, "run_id": "mine", "task_id": "parity", "try_number": 2}
    run = SimpleNamespace(run_id="mine", run_type="manual", partition_key=None)
    context = {"dag": dag, "dag_run": run, "params": {}, "task": task}
    context["ti"] = SimpleNamespace(log_url="http://airflow/run", **about)
    other = SimpleNamespace(venv=Path(folder))
    try:
        with mock.patch("tocsin.airflow.tasks.command.here", return_value=other):
            task.python_callable(*task.op_args, **context)
    except AirflowException as error:
        for tell in task.on_failure_callback:
            tell(context | {"exception": error})
    else:
        raise AssertionError("stream and backfill agree")


def send_all() -> None:
    with contextlib.suppress(TransientError):
        send(patience=0.0)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "send":
        send_all()
    elif what == "lose":
        lose(*rest)
    elif what == "pass_over":
        pass_over(*rest)
    elif what == "parity":
        compare(*rest)
    else:
        fail(what, *rest)
