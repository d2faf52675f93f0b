"""A program for Airflow's environment: the command of a program's task, and how it ends by each exit code, as JSON."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from tocsin.airflow.tasks.program import Program


def end(code: int) -> tuple[list[str], str, str]:
    """The command, and the kind of exception with which the task ends and what it says; empty when it succeeds."""
    command: list[str] = []

    def submit(self: Any, application: str) -> None:
        command.extend(self._build_spark_submit_command(application))
        self._submit_sp = SimpleNamespace(returncode=code)
        if code:
            tail = "".join(f"\nline {number}" for number in range(1, 31))
            said = f"Cannot execute: spark-submit {application}. Error code is: <masked>."
            raise AirflowException(f"{said}\nLast spark-submit output:{tail}")

    SparkSubmitHook.submit = submit
    try:
        Program(task_id="run", program="seal").execute({})
    except AirflowException as error:
        return command, type(error).__name__, str(error)
    return command, "", ""


if __name__ == "__main__":
    print(json.dumps({code: end(int(code)) for code in sys.argv[1:]}))
