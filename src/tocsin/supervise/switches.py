"""Keep which detectors, flows and views are switched off, outside the database of whoever shows the switches.

A new metadata DB knows of no pause; what is stored here says which jobs must not start all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import PLATFORM_DAG, dag_of
from tocsin.platform import state_file
from tocsin.platform.heartbeat import seconds_since_look
from tocsin.supervise.job_kinds import names
from tocsin.supervise.job_states import UNREADABLE, Desired

TRUSTED_SECONDS = 150.0
"""So long the switches of Airflow's last look are taken for those of now: it looks each minute, reading them first."""

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Switches:
    """The switches as they were read last.

    Attributes:
        off: by DAG, whether it is paused; one that is missing was never seen, and its jobs run if their stage does.
        unreadable: DAGs whose switch could not be read: their jobs are left alone.
        is_broken: what was read is not readable any more, so no switch is known.
    """

    off: Mapping[str, bool] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    read_at: float = 0.0
    is_broken: bool = False

    def apply(self, desired: Mapping[str, Desired]) -> dict[str, Desired]:
        """Those of `desired` that are switched on."""
        jobs = {}
        for job, wanted in desired.items():
            dag = dag_of(job)
            if dag in self.unreadable or (self.is_broken and dag != PLATFORM_DAG):
                jobs[job] = UNREADABLE
            elif not self.off.get(dag, False):
                jobs[job] = wanted
        return jobs


def switched_jobs(catalog: Catalog) -> dict[str, list[str]]:
    """List the jobs that each DAG of their own switches, by the DAG: of detectors, flows and views, broken ones too."""
    found: dict[str, list[str]] = {}
    for kind in KINDS.values():
        for job in map(kind.job, names(kind, catalog) if kind.dag else []):
            found.setdefault(dag_of(job), []).append(job)
    return found


def read_switches(state: Path) -> Switches:
    """Read the switches in the state folder; empty if there is no such file.

    If it is broken no switch is known, and no job starts or stops for it: a paused one must not start.
    """
    path = state / "supervision" / "desired.json"
    try:
        return state_file.load(path, Switches)
    except FileNotFoundError:
        return Switches()
    except ValueError:
        log.error("switches unreadable, jobs left alone; restore the file, or remove it if none is off", file=str(path))
        return Switches(is_broken=True)


def followed_switches(state: Path) -> Switches:
    """Read the switches that whoever looked at the jobs last went by: none, where that was not Airflow."""
    switches, looked = read_switches(state), seconds_since_look(state)
    is_followed = looked is None or time.time() - looked - switches.read_at < TRUSTED_SECONDS
    return switches if is_followed else Switches()


def not_stopped(state: Path, declared: Mapping[str, Desired]) -> dict[str, Desired]:
    """Those of `declared` that no operator has stopped: not what is switched off."""
    return followed_switches(state).apply(declared)


def ask_switches(state: Path, dags: Iterable[str], is_off: Callable[[str], bool | None]) -> Switches:
    """Read the switch of each of `dags`, and store them; those of other DAGs are forgotten.

    `is_off` returns None for a DAG without a switch yet; any exception means that it cannot be read now. Raises OSError
    if the state folder cannot be written.
    """
    before, began = read_switches(state), time.time()
    off, unreadable = {}, set()
    for name in dags:
        try:
            switch = is_off(name)
        except Exception:  # whatever is wrong with the reading is no reason to start or stop a job
            switch = None
            unreadable.add(name)
        if switch is None and before.is_broken:
            unreadable.add(name)
        switch = before.off.get(name) if switch is None else switch
        if switch is not None:
            off[name] = switch
    switches = Switches(off=off, unreadable=frozenset(unreadable), read_at=began)
    if before.is_broken and unreadable:
        return switches  # what was off is not known yet: the broken file stays to be looked at
    state_file.write(state / "supervision" / "desired.json", Switches, switches)
    return switches


def note_turn(state: Path) -> None:
    """Note that somebody has just turned a switch, whichever; raises OSError if the state folder cannot be written."""
    state_file.write(state / "supervision" / "turned.json", float, time.time())


def turned_since(state: Path, switches: Switches) -> bool:
    """Return whether a switch was turned after `switches` were read."""
    return state_file.read(state / "supervision" / "turned.json", float, 0.0) >= switches.read_at > 0
