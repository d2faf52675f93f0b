"""One look at all that tells how the jobs fare: declared files, signs of life, processes, what supervision did."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.detect.drain_request import Drains, read_drains
from tocsin.model.names import DETECTOR
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force, declared_files
from tocsin.runtime.heartbeat import Beat, read_beat
from tocsin.runtime.state_file import Stamps, stamps
from tocsin.supervision.incidents.chronicle import chronicle_of, read_events
from tocsin.supervision.job_kinds import KINDS
from tocsin.supervision.job_states import Past
from tocsin.supervision.job_status import memory_of
from tocsin.supervision.memory import read_history
from tocsin.supervision.runners.local import LocalRunner
from tocsin.supervision.runners.process_labels import instance_of
from tocsin.supervision.runners.runner import Process
from tocsin.supervision.switches import Switches, read_switches
from tocsin.web.episodes import episodes
from tocsin.web.page_shapes import Episode

_CHARGE = "jobs"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What one look found.

    Attributes:
        at: epoch seconds.
        project: the folder of the declared files.
        catalog: what they declare, each detector in the version that is in force.
        jobs: all of it, and what runs besides: detectors first.
        processes: the live ones of each job, the oldest first.
        beats: the last sign of life of each job that ever gave one.
        besides: the same of processes that are to take over from the one that leads their job.
        pasts: what supervision remembers of each job.
        switches: of the detectors, as the supervisor read them last.
        drains: that an operator has asked for.
        episodes: of each job, the newest first.
    """

    at: float
    project: Path
    catalog: Catalog
    jobs: Sequence[str]
    processes: Mapping[str, Sequence[Process]]
    beats: Mapping[str, Beat]
    besides: Mapping[str, Beat]
    pasts: Mapping[str, Past]
    switches: Switches
    drains: Drains
    episodes: Mapping[str, Sequence[Episode]]


class Looker:
    """Looks; what has not changed since the last look is not read again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = LocalRunner(instance_of(settings), settings.log)
        self._stamps: Stamps | None = None
        self._catalog = Catalog()
        self._told: dict[str, tuple[int, list[Episode]]] = {}

    def look(self) -> Sight:
        """Look once.

        Raises:
            OSError: the state folder, or a file in it that supervision needs, cannot be read.
        """
        state = self._settings.state
        os.listdir(state)
        catalog = self._declared()
        processes: dict[str, list[Process]] = {}
        for process in self._runner.list():
            processes.setdefault(process.labels.job, []).append(process)
        jobs = _jobs(catalog, processes)
        beats = {job: beat for job in jobs if (beat := read_beat(state, job)) is not None}
        doubled = [job for job, several in processes.items() if len(several) > 1]
        besides = {job: beat for job in doubled if (beat := read_beat(state, job, beside=True)) is not None}
        return Sight(
            at=time.time(),
            project=self._settings.project,
            catalog=catalog,
            jobs=jobs,
            processes=processes,
            beats=beats,
            besides=besides,
            pasts=read_history(memory_of(state, _CHARGE)).jobs,
            switches=read_switches(state),
            drains=read_drains(state),
            episodes={job: self._episodes(job) for job in jobs},
        )

    def _declared(self) -> Catalog:
        now = stamps(declared_files(self._settings))
        if now != self._stamps:
            self._catalog, self._stamps = catalog_in_force(self._settings), now
        return self._catalog

    def _episodes(self, job: str) -> list[Episode]:
        path = chronicle_of(self._settings.state, job)
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        known = self._told.get(job)
        if known is None or known[0] != stamp:
            known = (stamp, episodes(read_events(self._settings.state, job)))
            self._told[job] = known
        return known[1]


def _jobs(catalog: Catalog, running: Mapping[str, object]) -> list[str]:
    kinds = sorted(KINDS.values(), key=lambda kind: kind.word != DETECTOR)
    declared = [kind.job(name) for kind in kinds for name in kind.names(catalog)]
    return [*declared, *sorted(set(running) - set(declared))]
