"""What Airflow costs, and how soon it does what people ask, with thirty detectors declared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Goal, table
from bench.fleet import LIGHT, REAL, Fleet, running
from bench.processes import Memory, await_that
from tocsin.declare.model.names import dag_of, detector_job
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import InstalledJobs

_LIMIT_SECONDS = 180.0
_SETTLE_SECONDS = 60.0
_LOOKS = 30
_READS = 5


@dataclass(frozen=True)
class Effect:
    """What came of one thing that somebody did.

    Attributes:
        noticed: seconds until a process was started for it, or asked to stop.
        done: seconds until the job ran and said so, or was gone.
    """

    noticed: float
    done: float


@dataclass
class Found:
    """What was measured.

    Attributes:
        effects: by what was done.
        run, backfill: seconds from the request of a run, and of a backfill, to the start of its first task.
        refused: how often Airflow refused a backfill, since its DB (SQLite) was locked; it was asked again at once.
        looks: seconds of the supervisor's task in each of its last runs, its start not included.
        drift: seconds of one comparison of all jobs, which is the same without acting, in a process that is warm.
        parse, parse_one: seconds to read dags/ with all detectors, and with one, when nothing else runs.
        memory: of Airflow.
    """

    effects: dict[str, list[Effect]] = field(default_factory=dict)
    run: list[float] = field(default_factory=list)
    backfill: list[float] = field(default_factory=list)
    refused: int = 0
    looks: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    parse: float = 0.0
    parse_one: float = 0.0
    memory: Memory = field(default_factory=lambda: Memory(0, 0))


def measure(folder: Path, rounds: int) -> Found:
    """Everything, on one platform."""
    found = Found()
    with running(folder) as fleet:
        time.sleep(_SETTLE_SECONDS)
        found.memory = fleet.airflow_memory()
        jobs = InstalledJobs(fleet.settings)
        jobs.diff()
        for _ in range(20):
            found.drift.append(_timed(jobs.diff))
        for number in range(rounds):
            found.run.append(_run_started(fleet))
            seconds, refused = _backfill_started(fleet, number)
            found.backfill.append(seconds)
            found.refused += refused
            print(f"a run: {found.run[-1]:.1f} s, a backfill: {seconds:.1f} s, refused {refused} times", flush=True)
            for what, effect in _effects(fleet, number):
                found.effects.setdefault(what, []).append(effect)
                print(f"{what}: {effect}", flush=True)
        found.looks = _looks(fleet)
        project = Path(shutil.copytree(fleet.settings.project, folder / "copy"))
    found.parse = median([_parse(project, folder) for _ in range(_READS)])
    for path in sorted((project / "detectors").glob("*.py"))[1:]:
        path.unlink()
    found.parse_one = median([_parse(project, folder) for _ in range(_READS)])
    return found


def _timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _effects(fleet: Fleet, number: int) -> list[tuple[str, Effect]]:
    """Each thing that people do to a detector, once."""
    name, extra = fleet.real[-1], f"extra_{number}"
    dag, file = dag_of(detector_job(name)), fleet.detectors / f"{name}.py"
    limit = f"urgent={10_000 + number}"

    def edit() -> None:
        text = file.read_text(encoding="utf-8")
        at = text.index("urgent=")
        file.write_text(text.replace(text[at : text.index(")", at)], limit), encoding="utf-8")

    return [
        ("edit its file", _effect(fleet, name, edit, runs=True)),
        ("pause", _effect(fleet, name, lambda: fleet.api.pause(dag, True), runs=False)),
        ("unpause", _effect(fleet, name, lambda: fleet.api.pause(dag, False), runs=True)),
        ("Trigger, restart", _effect(fleet, name, lambda: fleet.api.trigger(dag, action="restart"), runs=True)),
        ("add a file", _effect(fleet, extra, lambda: fleet.declare(extra), runs=True)),
        ("delete it", _effect(fleet, extra, (fleet.detectors / f"{extra}.py").unlink, runs=False)),
    ]


def _effect(fleet: Fleet, detector: str, act: Callable[[], object], *, runs: bool) -> Effect:
    """Do something, and wait until the job of `detector` is another process that runs, or is gone."""
    before, began = fleet.pids(detector), time.monotonic()
    act()
    await_that(lambda: fleet.is_touched(detector, before), _LIMIT_SECONDS, f"{detector} to be touched")
    noticed = time.monotonic() - began

    def is_done() -> bool:
        after = fleet.pids(detector)
        return bool(after) and not after & before and fleet.runs(detector) if runs else not after

    await_that(is_done, _LIMIT_SECONDS, f"{detector} to be as asked")
    return Effect(noticed, time.monotonic() - began)


def _run_started(fleet: Fleet) -> float:
    """Seconds from the request of a run that does next to nothing to the start of its task."""
    at = datetime.now(UTC)
    run = fleet.api.trigger("platform", action="status", job="notifier")
    return _first_start(fleet, "platform", {run}, at)


def _backfill_started(fleet: Fleet, number: int) -> tuple[float, int]:
    """The same for a backfill of one day of a DAG that does next to nothing here; and how often it was refused."""
    day = (datetime.now(UTC) - timedelta(days=3 + number)).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"from_date": day.isoformat(), "to_date": (day + timedelta(hours=23)).isoformat()}
    before, at = fleet.api.runs("housekeeping").keys(), datetime.now(UTC)
    refused = fleet.ask_for_backfill("housekeeping", days)
    runs = fleet.api.runs("housekeeping").keys() - before
    if not runs:
        raise RuntimeError(f"a backfill of {days} made no run")
    started = _first_start(fleet, "housekeeping", set(runs), at)

    def over() -> bool:
        states = fleet.api.runs("housekeeping")
        return all(states[run] in ("success", "failed") for run in runs)

    await_that(over, _LIMIT_SECONDS, "the backfill to end")
    return started, refused


def _first_start(fleet: Fleet, dag: str, runs: set[str], at: datetime) -> float:
    def starts() -> list[datetime]:
        found = [one for run in runs for one in _tasks(fleet, dag, run)]
        return [datetime.fromisoformat(one["start_date"]) for one in found if one["start_date"]]

    await_that(starts, _LIMIT_SECONDS, f"a task of {dag}")
    return (min(starts()) - at).total_seconds()


def _looks(fleet: Fleet) -> list[float]:
    found = [one for one in _tasks(fleet, "supervisor", "~") if one["task_id"] == "look" and one["state"] == "success"]
    return [float(one["duration"]) for one in found[:_LOOKS]]


def _tasks(fleet: Fleet, dag: str, run: str) -> list[dict[str, Any]]:
    """Task instances of a run, or of all ("~"), the newest first."""
    path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=100&order_by=-start_date"
    found: list[dict[str, Any]] = fleet.api.call("GET", path)["task_instances"]
    return found


def _parse(project: Path, scratch: Path) -> float:
    """Seconds in which Airflow reads dags/ for the detectors of `project`, its own imports not included."""
    root = here().root
    command = [str(here().airflow_venv / "bin" / "python"), str(root / "tests" / "airflow" / "read_dags.py")]
    own = {"AIRFLOW_HOME": str(scratch / "parse"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    own |= {"TOCSIN_PROJECT": str(project), "TOCSIN_STATE": str(scratch / "parse")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TOCSIN"))}
    done = subprocess.run(
        [*command, str(root / "dags")], env=environment | own, capture_output=True, text=True, check=True
    )
    seconds: float = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return seconds


def report(found: Found) -> tuple[str, list[Goal]]:
    """The tables, and the goals."""
    run = median(found.run)
    rows: list[dict[str, object]] = [
        {
            "what people do": what,
            "noticed, median s": median([one.noticed for one in effects]),
            "worst": max(one.noticed for one in effects),
            "beside a run that does nothing": f"{median([one.noticed for one in effects]) / run:.1f} x",
            "done, median s": median([one.done for one in effects]),
            "times": len(effects),
        }
        for what, effects in found.effects.items()
    ]
    declared = REAL + LIGHT
    costs: list[dict[str, object]] = [
        {"figure": "a run that does nothing, request to start of its task, median s", "measured": f"{run:.1f}"},
        {"figure": "a backfill, the same", "measured": f"{median(found.backfill):.1f}"},
        {"figure": "refusals of a backfill, since SQLite was locked", "measured": str(found.refused)},
        {
            "figure": f"the supervisor's task, median s of {len(found.looks)}",
            "measured": f"{median(found.looks):.2f}",
        },
        {"figure": "one comparison of all jobs, warm, median ms", "measured": f"{1000 * median(found.drift):.0f}"},
        {"figure": f"reading dags/ with {declared} detectors, s", "measured": f"{found.parse:.2f}"},
        {"figure": "reading dags/ with one, s", "measured": f"{found.parse_one:.2f}"},
        {"figure": "memory of Airflow, RSS MB", "measured": f"{found.memory.rss / 1e6:.0f}"},
        {"figure": "memory of Airflow, PSS MB", "measured": f"{found.memory.pss / 1e6:.0f}"},
    ]
    noticed = [one.noticed for effects in found.effects.values() for one in effects]
    goals = [
        Goal("seconds until anything that people do is noticed, worst", max(noticed), 5, " s"),
        Goal("a backfill starts beside a run that does nothing", median(found.backfill) / run, 2, " x"),
        Goal("memory of Airflow, PSS", found.memory.pss / 1e9, 1.1, " GB"),
    ]
    return f"{table(rows)}\n\n{table(costs)}", goals
