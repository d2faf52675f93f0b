"""One component of Airflow as the main process of a container: `python -m tocsin.dev.container scheduler`.

`prepare` makes the secrets, the passwords and the metadata DB, and ends. With `--check` nothing is started: the exit
code tells whether the component that runs works. Variables of Airflow's own (`AIRFLOW__API__HOST`) that the container
has come before what the stack would say.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime, timedelta

from tocsin.declare.model.errors import TocsinError
from tocsin.declare.settings import load_settings
from tocsin.dev.servers.airflow_servers import COMPONENTS, Airflow, missing
from tocsin.platform import private
from tocsin.platform.process_exit import ExitCode
from tocsin.setup.java import find_java
from tocsin.setup.paths import here

_PREPARE = "prepare"
_OWN = "AIRFLOW__"
_API = f"{_OWN}CORE__EXECUTION_API_SERVER_URL"
# Components tell Airflow every few seconds that they live.
_SILENCE = timedelta(minutes=1)


def main(arguments: list[str] | None = None) -> int:
    """Become the component; returns only when it cannot, or when asked to check."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.dev.container", description=__doc__)
    parser.add_argument("component", choices=[_PREPARE, *COMPONENTS])
    parser.add_argument("--check", action="store_true", help="only exit with 0 if it works")
    options = parser.parse_args(arguments)
    try:
        environment = _environment()
    except (TocsinError, OSError) as error:
        print(error, file=sys.stderr)
        return ExitCode.MISCONFIGURED
    if options.check:
        fault = missing(environment[_API].removesuffix("/execution/"), options.component, datetime.now(UTC) - _SILENCE)
        print("works" if fault is None else f"waits for {fault}")
        return ExitCode.OK if fault is None else ExitCode.FAILED
    python = str(here().airflow_venv / "bin" / "python")
    os.execve(python, [python, "-m", "tocsin.airflow.component", options.component], environment)


def _environment() -> dict[str, str]:
    settings = load_settings()
    private.protect(settings.state)
    airflow = Airflow(settings, settings.airflow.port, find_java().home)
    airflow.prepare()
    return airflow.environment() | {name: value for name, value in os.environ.items() if name.startswith(_OWN)}


if __name__ == "__main__":
    sys.exit(main())
