"""A program for Airflow's environment: runs the others, each in a child that has imported Airflow already.

A line of its input is a JSON array of a program with its words, its environment, and two files for what it says; the
answer is a line with the exit code.
"""

import json
import os
import runpy
import sys
import traceback
from importlib import import_module
from pathlib import Path

AIRFLOW = (
    *("airflow.api_fastapi.core_api.security", "airflow.dag_processing.dagbag", "fastapi.testclient"),
    "airflow.providers.apache.spark.hooks.spark_submit",
)


def run(words: list[str], environment: dict[str, str], files: list[str]) -> int:
    """Run a program as its interpreter does; its exit code."""
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Airflow logs to its output
    for module in AIRFLOW:
        import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code = run(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    main()
