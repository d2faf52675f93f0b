"""The command `tocsin`, run by a task in the environment of the jobs."""

from __future__ import annotations

import os
import re
import subprocess

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tocsin.provision.paths import here

MISCONFIGURED = 2
"""Exit code of whatever somebody has to mend first, so that a retry does not help."""

_TOLD = 4000
_OURS = re.compile(r"_{0,2}AIRFLOW|PYTHONPATH$|PYTHONHOME$")


def tocsin(*words: str) -> str:
    """What `tocsin WORDS...` wrote to its standard output; what it said besides goes to the log of the task.

    It finds nothing of Airflow's own in its environment: neither the metadata DB, nor its secrets, nor its Python path.

    Raises:
        AirflowFailException: a file or a setting must be mended first.
        AirflowException: it failed for another reason; a retry may help.
    """
    kept = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    command = [str(here().venv / "bin" / "tocsin"), *words]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    print(done.stderr)
    if done.returncode == MISCONFIGURED:
        raise AirflowFailException(done.stderr)
    if done.returncode:
        raise AirflowException(f"{done.stdout}\n{done.stderr}".strip()[-_TOLD:])
    return done.stdout
