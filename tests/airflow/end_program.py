"""A program for Airflow's environment: how the task of a program ends by the program's exit code, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException

from tocsin.airflow.program import Program


def end(code: int) -> str:
    """The kind of exception with which the task ends; empty when it succeeds."""

    def submit(self: Any, application: str) -> None:
        del self
        if code:
            raise AirflowException(f"Cannot execute: spark-submit {application}. Error code is: {code}.")

    SparkSubmitHook.submit = submit
    try:
        Program(task_id="run", program="seal").execute({})
    except AirflowException as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    print(json.dumps({code: end(int(code)) for code in sys.argv[1:]}))
