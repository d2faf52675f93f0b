"""Start one component of Airflow, as the stack does: `python -m tocsin.airflow.component scheduler`.

The first one brings the metadata DB up to date, and the others wait for that. `prepare` does only the former.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
import urllib.request
from pathlib import Path

SUPERVISION_POOL = "supervision"
BACKFILL_POOL = "backfill"

_POOLS = {
    SUPERVISION_POOL: "The supervisor, and what operators ask it to do; one at a time.",
    BACKFILL_POOL: "Batch Spark sessions that fit beside the running jobs.",
}
_STAMP = "prepared"
_ANSWER_SECONDS = 5.0
_TRY_SECONDS = 0.5
# The log servers bind to all addresses; on one machine the page reads the files themselves.
_ARGUMENTS = {"scheduler": ["--skip-serve-logs"], "triggerer": ["--skip-serve-logs"]}


def main() -> None:
    """Prepare the metadata DB, then run the component; returns when nothing but the former is asked for."""
    component, home = sys.argv[1], Path(os.environ["AIRFLOW_HOME"])
    if component == "prepare":
        (home / _STAMP).unlink(missing_ok=True)  # the DB may be another one at the same address
        prepare(home)
        return
    prepare(home)
    if component == "scheduler":
        await_api(os.environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"])
    from airflow.__main__ import main as run  # noqa: PLC0415 - it reads the environment when it is imported

    sys.argv = ["airflow", component, *_ARGUMENTS.get(component, [])]
    run()


def await_api(address: str) -> None:
    """Wait until the API server at `address` answers: the first tasks that a scheduler starts would fail before."""
    print("waits for the API server", flush=True)
    version = f"{address.removesuffix('/execution/')}/api/v2/version"
    while True:
        try:
            with urllib.request.urlopen(version, timeout=_ANSWER_SECONDS):
                return
        except OSError:
            time.sleep(_TRY_SECONDS)


def prepare(home: Path) -> None:
    """Bring the metadata DB up to date and make the pools, once for each version of Airflow and each DB."""
    from airflow import __version__, settings  # noqa: PLC0415 - likewise

    made_for = hashlib.sha256(f"{__version__} {settings.SQL_ALCHEMY_CONN}".encode()).hexdigest()
    stamp = home / _STAMP
    with (home / "prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text(encoding="utf-8") == made_for:
            return
        from airflow.models.pool import Pool  # noqa: PLC0415 - only where it is needed: slow to import
        from airflow.utils.db import upgradedb  # noqa: PLC0415 - likewise

        upgradedb()
        for name, purpose in _POOLS.items():
            Pool.create_or_update_pool(name, slots=1, description=purpose, include_deferred=False)
        stamp.write_text(made_for, encoding="utf-8")


if __name__ == "__main__":
    main()
