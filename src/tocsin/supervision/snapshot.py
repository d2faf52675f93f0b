"""Take one snapshot of the jobs: declared files, processes, heartbeats, supervision's memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tocsin.model.detector import DetectorSpec
from tocsin.model.flow import FlowSpec
from tocsin.model.job_report import SILENT_SECONDS
from tocsin.model.names import DETECTOR, JobName
from tocsin.model.source import Source
from tocsin.model.table import TableSpec
from tocsin.model.view import ViewSpec
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime.heartbeat import Beat, read_beat, read_besides, seconds_since_look
from tocsin.supervision.health import JobFacts
from tocsin.supervision.job_kinds import KINDS, broken_jobs
from tocsin.supervision.job_states import Past, memory_of, read_history
from tocsin.supervision.runners.runner import Process
from tocsin.supervision.switches import Switches, read_switches


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The result of one look.

    Attributes:
        at: epoch seconds.
        project: the folder of the declared files.
        catalog: what they declare, each detector in the version that is in force.
        jobs: all of it, and what runs besides: detectors first.
        processes: the live ones of each job, the oldest first.
        is_listed: False where a cluster runs them, so that only their reports tell.
        beats: the last sign of life of each job that ever gave one.
        besides: the same of processes that are to take over from the one that leads their job.
        pasts: what supervision remembers of each job.
        switches: of the detectors, as the supervisor read them last.
        looked_seconds: since the supervisor last looked at the jobs; None when none ever has here.
    """

    at: float
    project: Path
    catalog: Catalog
    jobs: Sequence[str] = ()
    processes: Mapping[str, Sequence[Process]] = field(default_factory=dict)
    beats: Mapping[str, Beat] = field(default_factory=dict)
    besides: Mapping[str, Beat] = field(default_factory=dict)
    pasts: Mapping[str, Past] = field(default_factory=dict)
    switches: Switches = field(default_factory=Switches)
    is_listed: bool = True
    looked_seconds: float | None = None

    def spec(self, job: str) -> FlowSpec | DetectorSpec | ViewSpec | None:
        """Return what is declared of `job` as code; None for a job of another kind, or a file that cannot be read."""
        own = JobName.parse(job)
        declared = KINDS[own.kind].declared if own.kind in KINDS else None
        spec = declared(self.catalog).get(own.name) if declared is not None else None
        return None if isinstance(spec, Source | TableSpec) else spec

    def facts(self, job: str, off: bool | None = None) -> JobFacts:
        """Gather what is known of `job`; `off` says whether its switch is off, None when that is not known."""
        own = JobName.parse(job)
        spec = self.spec(job)
        error = broken_jobs(self.catalog).get(job)
        return JobFacts(
            at=self.at,
            faults=[str(one).replace(f"{self.project}/", "") for one in error.faults] if error else (),
            declared=own.kind in KINDS and own.name in KINDS[own.kind].names(self.catalog),
            stage=spec.stage if spec else None,
            off=off,
            processes=self.processes.get(job, ()) if self.is_listed else None,
            beat=self.beats.get(job),
            beside=self.besides.get(job),
            past=self.pasts.get(job, Past()),
            looked_seconds=self.looked_seconds,
        )

    def reported(self, job: str, beat: Beat | None, off: bool) -> JobFacts:
        """Gather what is known of `job`, whose last report anywhere is `beat`; another machine may run it."""
        facts = self.facts(job, off)
        supervised = job in self.pasts or job in self.processes
        return replace(facts, beat=beat or facts.beat, processes=facts.processes if supervised else None)


def look(settings: Settings, catalog: Catalog, processes: Iterable[Process] | None) -> Snapshot:
    """Look at the jobs of `catalog`, and at those that run besides; `processes` are the live ones, None if unknown."""
    state, running = settings.state, dict[str, list[Process]]()
    for process in processes or ():
        running.setdefault(process.labels.job, []).append(process)
    jobs = _jobs(settings, catalog, running)
    return Snapshot(
        at=time.time(),
        project=settings.project,
        catalog=catalog,
        jobs=jobs,
        processes=running,
        beats={job: beat for job in jobs if (beat := read_beat(state, job)) is not None},
        besides={job: one for job, one in read_besides(state, jobs).items() if one.age_seconds <= SILENT_SECONDS},
        pasts=read_history(memory_of(state, "jobs")).jobs,
        switches=read_switches(state),
        is_listed=processes is not None,
        looked_seconds=seconds_since_look(state),
    )


def _jobs(settings: Settings, catalog: Catalog, running: Mapping[str, object]) -> list[str]:
    wanted = [kind for kind in KINDS.values() if kind.wanted(settings)]
    kinds = sorted(wanted, key=lambda kind: kind.word != DETECTOR)
    declared = [kind.job(name) for kind in kinds for name in kind.names(catalog)]
    return [*declared, *sorted(set(running) - set(declared))]
