"""`python -m bench [MEASUREMENT ...]`: all of them, or those that are named; see `make bench`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench import (
    airflow,
    backfill,
    cluster,
    drain,
    growth,
    install,
    latency,
    log_drain,
    mail,
    pipeline,
    rescale,
    six,
    startup,
    views,
)
from bench.figures import Goal, table
from bench.load import Backlog
from bench.rig import Rig, opened
from bench.systems import compile_streams
from tocsin.declare.model.errors import ConfigError
from tocsin.setup.paths import here

_ON_THE_RIG = (
    "latency",
    "pipeline",
    "six",
    "growth",
    "start",
    "drain",
    "mail",
    "log_drain",
    "views",
    "rescale",
    "cluster",
)
_APART = ("backfill", "airflow", "install")
_QUIET = 1.0

_Found = TypeVar("_Found")
Result = tuple[str, list[Goal], object]


def main() -> int:
    """Measure what is asked for; returns 0 also when a goal is missed, 2 when something must be fixed first."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit unwinds, and what was started is stopped
    _warn_of_load()
    try:
        results = _measure(given)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    goals = [goal for _, goals, _ in results.values() for goal in goals]
    print("\n## Goals\n")
    print(table([goal.row() for goal in goals]), flush=True)
    print(f"\nWritten to {_write(given.folder, results)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Tocsin beside its peers.")
    parser.add_argument("what", nargs="*", default="all", choices=[*_ON_THE_RIG, *_APART, "all"])
    parser.add_argument("--seconds", type=float, default=120.0, help="measured in each round (default 120)")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds before them (default 60)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each system, or of what people do (default 2)")
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        help="of a drained backlog, upserts of a view, and sent to readers of one (default a million)",
    )
    parser.add_argument("--detectors", type=int, nargs="+", default=[6], help="of `six`, at once (default 6)")
    parser.add_argument("--keys", type=int, default=100_000, help="users of what a cluster drains (default 100,000)")
    rows = "of all days of a backfill together (default 6 and 60 million); may be several"
    parser.add_argument("--rows", type=int, nargs="+", default=[6_000_000, 60_000_000], help=rows)
    parser.add_argument("--days", type=int, default=60, help="of a backfill (default 60)")
    parser.add_argument("--folder", type=Path, default=here().bench, help="for logs and results")
    given = parser.parse_args()
    if "all" in given.what:
        given.what = [*_ON_THE_RIG, *_APART]
    return given


def _burdens(given: argparse.Namespace) -> list[six.Burden]:
    return [replace(burden, detectors=count) for count in given.detectors for burden in six.SIX]


def _measure(given: argparse.Namespace) -> dict[str, Result]:
    plan = latency.Plan(given.warm_up, given.seconds, given.rounds)
    backlog = Backlog(given.records, given.records / 1000)
    sizes = cluster.Sizes(given.records, given.keys, max(given.rows), given.days)
    on_the_rig: dict[str, Callable[[Rig], Result]] = {
        "latency": lambda rig: _result(latency.measure(rig, plan), latency.report),
        "pipeline": lambda rig: _result(pipeline.measure(rig, plan), pipeline.report),
        "six": lambda rig: _result(six.measure(rig, plan, _burdens(given)), six.report),
        "growth": lambda rig: _result(growth.measure(rig, plan), growth.report),
        "start": lambda rig: _result(startup.measure(rig), startup.report),
        "drain": lambda rig: _result(drain.measure(rig, backlog), partial(drain.report, backlog=backlog)),
        "mail": lambda rig: _result(mail.measure(rig, given.seconds), mail.report),
        "views": lambda rig: _result(views.measure(rig, plan, given.records), views.report),
        "rescale": lambda rig: _result(rescale.measure(rig, given.records), rescale.report),
        "log_drain": lambda rig: _result(log_drain.measure(rig, given.seconds / 4, given.rounds), log_drain.report),
        "cluster": lambda rig: _result(cluster.measure(rig, plan, sizes), cluster.report),
    }
    results: dict[str, Result] = {}
    if set(given.what) & on_the_rig.keys():
        with opened(given.folder / "run") as rig:
            if {"latency", "drain", "views"} & set(given.what):  # the others have no peers
                compile_streams(rig)
            for what, measure in on_the_rig.items():
                if what in given.what:
                    results[what] = _shown(what, partial(measure, rig))
    if "backfill" in given.what:
        past = partial(backfill.measure, given.folder / "backfill", given.rows, given.days)
        results["backfill"] = _shown("backfill", lambda: _result(past(), backfill.report))
    if "airflow" in given.what:
        folder = given.folder / "airflow"
        results["airflow"] = _shown("airflow", lambda: _result(airflow.measure(folder, given.rounds), airflow.report))
    if "install" in given.what:
        clones = given.folder / "clones"
        results["install"] = _shown("install", lambda: _result(install.measure(clones), install.report))
    return results


def _result(found: _Found, report: Callable[[_Found], tuple[str, list[Goal]]]) -> Result:
    text, goals = report(found)
    return text, goals, found


def _shown(what: str, measure: Callable[[], Result]) -> Result:
    """Measure, and print the table with the state of the machine."""
    print(f"\n## {what}\n\nat {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.2f} before", flush=True)
    began = time.monotonic()
    result = measure()
    print(f"load {os.getloadavg()[0]:.2f} after {time.monotonic() - began:.0f} s\n\n{result[0]}", flush=True)
    return result


def _warn_of_load() -> None:
    load = os.getloadavg()[0]
    print(f"# Tocsin bench\n\n{platform.platform()}, {os.cpu_count()} CPUs, load {load:.2f}")
    if load > _QUIET:
        print("WARNING: something else runs on this machine; the figures will look worse than they are.")


def _write(folder: Path, results: dict[str, Result]) -> Path:
    path = folder / f"results-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    tables = {
        what: {"table": text, "goals": [asdict(goal) for goal in goals]} for what, (text, goals, _) in results.items()
    }
    path.write_text(json.dumps(tables, indent=1), encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
