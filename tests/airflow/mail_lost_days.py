"""A program for Airflow's environment: the mails of a night or a backfill that has failed.

`mail_lost_days.py TASK RUN OWNERS` fails as the task `seal` or `catch_up` does; OWNERS is a JSON object of source or
detector to address. `mail_lost_days.py send` does what a look of the supervisor leads to: each mail that waits is tried
once.
"""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException

from tocsin.airflow.backfill_mail import BackfillMail
from tocsin.airflow.mails import send
from tocsin.airflow.seal_task import SealMail
from tocsin.settings import load_settings
from tocsin.supervision.outbox import Outbox


def fail(task: str, run_id: str, owners: str) -> None:
    about = {"dag_id": "history__logins", "run_id": run_id, "task_id": task, "try_number": 1}
    context = {
        "dag": DAG("history__logins", schedule=None),
        "dag_run": SimpleNamespace(run_id=run_id),
        "ti": SimpleNamespace(log_url="http://airflow/run", **about),
        "exception": RuntimeError("Error code is: <2>"),
    }
    {"seal": SealMail, "catch_up": BackfillMail}[task](json.loads(owners))(context)


def send_all() -> None:
    for name in Outbox(load_settings().state).waiting():
        with contextlib.suppress(OSError):
            send(SimpleNamespace(run_id=name))
            with contextlib.suppress(AirflowSkipException):
                send(SimpleNamespace(run_id=name))
                raise AssertionError("what has left must not leave again")


if __name__ == "__main__":
    send_all() if sys.argv[1] == "send" else fail(*sys.argv[1:])
