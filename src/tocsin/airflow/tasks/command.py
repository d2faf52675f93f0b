"""The command `tocsin`, run by a task in the environment of the jobs."""

from __future__ import annotations

import os
import re
import subprocess

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tocsin.platform.process_exit import ExitCode
from tocsin.setup.paths import here

# What a command found comes first, and why it failed last.
_FIRST, _LAST = 3000, 1000
_OURS = re.compile(r"_{0,2}AIRFLOW|PYTHONPATH$|PYTHONHOME$")
# What each start of Spark's Java says; nobody who reads a mail can do anything about it.
_ALWAYS = re.compile(r"^WARNING: Using incubator modules: .*\n?", re.MULTILINE)


def tocsin(*words: str) -> str:
    """Run `tocsin WORDS...` and return its standard output; its other output goes to the log of the task.

    It finds nothing of Airflow's own in its environment: neither the metadata DB, nor its secrets, nor its Python path.

    Raises:
        AirflowFailException: a file or a setting must be fixed first.
        AirflowException: it failed for another reason; a retry may help.
    """
    environment = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    command = [str(here().venv / "bin" / "tocsin"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    besides = _ALWAYS.sub("", done.stderr)
    print(besides)
    if done.returncode == ExitCode.MISCONFIGURED:
        raise AirflowFailException(besides)
    if done.returncode:
        print(done.stdout)
        raise AirflowException(_short(f"{done.stdout}\n{besides}".strip()))
    return done.stdout


def _short(text: str) -> str:
    """As much of `text` as a mail takes; all of it is in the log."""
    return text if len(text) <= _FIRST + _LAST else f"{text[:_FIRST]}\n[...]\n{text[-_LAST:]}"
