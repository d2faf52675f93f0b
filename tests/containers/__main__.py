"""Run docker-compose.yml in podman, profile by profile, and print a table of each.

`python -m tests.containers` runs all profiles, `python -m tests.containers jobs` one. It needs root on Debian, and
`make setup-containers` before.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.containers import stand_ins
from tests.containers.composed import Composed
from tests.containers.engine import Engine
from tests.containers.figures import feeds_the_dashboard, is_scraped
from tests.containers.on_executors import keeps_state_apart, works_on_executors
from tests.containers.scenario import (
    CHECKS,
    Check,
    is_limited,
    learns,
    listens_on_loopback,
    mails,
    starts,
    stops,
    survives_kills,
)
from tocsin.setup.paths import here


@dataclass(frozen=True)
class Way:
    """A way of running the file.

    Attributes:
        jobs: the service in which the jobs are.
        checks: in their order.
        beside: the profiles that it needs besides its own.
        without: services that no stand-in can be had for.
    """

    jobs: str
    checks: tuple[Check, ...] = CHECKS
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


WAYS = {
    "jobs": Way("supervisor", (*CHECKS[:3], learns, *CHECKS[3:])),
    "airflow": Way("scheduler"),
    "cluster": Way("cluster-supervisor", (*CHECKS[:2], works_on_executors, keeps_state_apart, *CHECKS[2:])),
    "observability": Way(
        "supervisor",
        (starts, mails, is_scraped, feeds_the_dashboard, is_limited, listens_on_loopback, survives_kills, stops),
        beside=("jobs",),
        without=("grafana",),
    ),
}


def run(engine: Engine, folder: Path, profile: str) -> tuple[str, bool]:
    """Run all checks of a profile, which build on each other; returns the table and whether all went well.

    The first that fails ends the run; what the containers said last stands in its error.
    """
    rows, failed = [f"Profile `{profile}`, {datetime.now(UTC):%Y-%m-%d}:\n", "| what | result |", "|---|---|"], False
    way = WAYS[profile]
    with Composed(engine, folder, (*way.beside, profile), way.without) as stack:
        for check in way.checks:
            begun = time.monotonic()
            try:
                result = "not run" if failed else check(stack, way.jobs)
            except Exception as error:  # whatever it is, the containers must go and the table must say so
                failed, result = True, f"**failed**: {'; '.join(str(error).splitlines()[:2])}"
                print(error, flush=True)
            rows.append(f"| {check.__doc__} | {result} |")
            print(f"{rows[-1]} {time.monotonic() - begun:.0f} s", flush=True)
    return "\n".join((*rows, "")), not failed


def main() -> int:
    """Make the images and run the profiles; fail if something did not do as it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("profiles", nargs="*", choices=[*WAYS, []], help="all if none is given")
    parser.add_argument("--no-build", action="store_true", help="take the images as they are")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit unwinds, and the containers are removed
    home = here().home / "containers"
    if not (home / "venv").is_dir() or shutil.which("podman") is None:
        parser.error("podman or podman-compose is missing; run: make setup-containers")
    engine = Engine(home)
    if not given.no_build:
        stand_ins.provide(engine)
    went_well = True
    for profile in given.profiles or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            table, passed = run(engine, Path(folder), profile)
        went_well = went_well and passed
        print(table)
    return 0 if went_well else 1


if __name__ == "__main__":
    raise SystemExit(main())
