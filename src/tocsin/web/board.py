"""Gather what the pages know of an installation: the last look that worked, and what is read in the background."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.names import (
    DETECTOR,
    JobName,
    backfill_dag,
    compute_job,
    dag_of,
    detector_job,
    history_dag,
    rebuild_dag,
    view_job,
)
from tocsin.declare.model.sizes import printable
from tocsin.declare.settings import Settings
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.kafka.probe import ask
from tocsin.quality.unsealed_days import refusal, refused_days
from tocsin.supervise.incidents.chronicle import chronicle_of, read_events
from tocsin.supervise.incidents.episodes import Episode, episodes
from tocsin.supervise.job_status import Snapshot, Standing, look, unsupervised_reason
from tocsin.supervise.planning.desired_inputs import memory_limit
from tocsin.supervise.runners.runner_choice import process_reader
from tocsin.web.job_rows import RowFacts, declared_facts, rows
from tocsin.web.page_shapes import Board, JobPlace, JobRow, Note, Parity, Stories, Story
from tocsin.web.parity_page import Comparisons
from tocsin.web.refreshed import Refreshed
from tocsin.web.usage_query import Loads, read_usage

# Everybody who looks at the same time shares one look.
_LOOK_SECONDS = 1.5
_USAGE_SECONDS = 45.0
_PROBE_SECONDS = 5.0
# A page whose figures of the day are blank or old says less than one that comes so much later.
_PATIENCE_SECONDS = 4.0


class Installation:
    """Answers every page; never raises because something cannot be read: then it says so, and what it knew before."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._looker = Looker(settings)
        self._loads = Loads()
        self._comparisons = Comparisons(settings.state)
        self._usage = Refreshed(lambda: read_usage(settings), _USAGE_SECONDS)
        self._kafka = Refreshed(lambda: ask(settings.kafka), _PROBE_SECONDS)
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._looked_at = float("-inf")
        self._fault = ""

    def prepare(self) -> None:
        """Begin to read what takes long, so that the first page finds it."""
        self._usage.known()

    def board(self, off: Mapping[str, bool]) -> Board:
        """All jobs.

        Args:
            off: by DAG, whether it is paused; see `RowFacts`.
        """
        snapshot = self._look()
        looked_at = snapshot.at if snapshot else None
        return Board(now=time.time(), looked_at=looked_at, notes=self._notes(snapshot), rows=self._rows(snapshot, off))

    def stories(self, dag: str, off: Mapping[str, bool]) -> Stories:
        """The jobs of `dag` in detail."""
        snapshot = self._look()
        own = [row for row in self._rows(snapshot, off) if row.dag == dag]
        stories = [self._story(snapshot, row) for row in own if snapshot]
        return Stories(
            now=time.time(),
            looked_at=snapshot.at if snapshot else None,
            notes=self._notes(snapshot),
            jobs=stories,
            beside=[] if stories or snapshot is None else _beside(dag, snapshot.catalog),
        )

    def parity(self, dag: str) -> Parity:
        """Compare the findings of stream and backfill for the detector that `dag` handles."""
        own = map(JobName.parse, self.jobs_of(dag))
        detector = next((job.name for job in own if job.kind == DETECTOR), None)
        return Parity(now=time.time(), detector="") if detector is None else self._comparisons.of(detector)

    def dags(self) -> set[str]:
        """The DAGs that handle jobs."""
        snapshot = self._look()
        return {dag_of(job) for job in snapshot.jobs} if snapshot else set()

    def jobs_of(self, dag: str) -> list[str]:
        """The jobs that `dag` handles; none when it handles none, or when nothing could be read yet."""
        snapshot = self._look()
        return [job for job in snapshot.jobs if dag_of(job) == dag] if snapshot else []

    def _rows(self, snapshot: Snapshot | None, off: Mapping[str, bool]) -> list[JobRow]:
        if snapshot is None:
            return []
        usage = self._usage.known(_PATIENCE_SECONDS)
        facts = RowFacts(
            taken=usage.value or {},
            taken_at=usage.at,
            load=self._loads.of,
            unexplained=self._comparisons.unexplained,
            episodes=self._looker.episodes,
            off=off,
        )
        return rows(snapshot, facts)

    def _look(self) -> Snapshot | None:
        """The last look that worked, at most some seconds old unless nothing can be read."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                try:
                    self._snapshot, self._fault = self._looker.look(), ""
                    for beat in self._snapshot.beats.values():
                        self._loads.take(beat.report)
                except Exception as error:  # a page that explains is worth more than one that fails
                    self._fault = printable(f"{type(error).__name__}: {error}")
                self._looked_at = time.monotonic()
            return self._snapshot

    def _notes(self, snapshot: Snapshot | None) -> list[Note]:
        problem, warning = Standing.PROBLEM, Standing.WARNING
        found = []
        if self._fault:
            text = f"The state of the jobs cannot be read ({self._fault}). What is shown is what was read before."
            found.append(Note(severity=problem, text=text))
        if fault := self._kafka.known().error:
            text = f"{printable(fault)}. Jobs wait for it and go on by themselves; nothing is lost."
            found.append(Note(severity=problem, text=text))
        if unsupervised := unsupervised_reason(snapshot.looked_seconds if snapshot else None):
            text = f"{unsupervised[0].upper()}{unsupervised[1:]}. Is its DAG paused, or the scheduler down?"
            found.append(Note(severity=problem, text=text))
        for source in snapshot.catalog.sources if snapshot else ():
            if days := refused_days(self.settings.state, source):
                found.append(Note(severity=problem, text=f"{refusal(source, days)}."))
        usage = self._usage.known()
        if usage.error:
            effect = "it is not known" if usage.at is None else "what is shown is older"
            text = f"What the jobs took today cannot be read ({printable(usage.error)}); {effect}."
            found.append(Note(severity=warning, text=text))
        return found

    def _story(self, snapshot: Snapshot, row: JobRow) -> Story:
        spec = snapshot.catalog.detectors.get(row.name) if row.kind == DETECTOR else None
        facts = []
        if spec is not None:
            sources = snapshot.catalog.sources_of(spec)
            facts = declared_facts(spec, memory_limit(self.settings, sources, spec.memory))
        crashes = [one for one in self._looker.episodes(row.job) if one.failed]
        return Story(row=row, episodes=crashes, facts=facts)


def _beside(dag: str, catalog: Catalog) -> list[JobPlace]:
    """List the jobs on whose events or findings the batches of `dag` work."""
    by_dag = {history_dag(name): [one.job for one in catalog.upstream(name)[:1]] for name in catalog.sources}
    for name in catalog.sources:
        by_dag[history_dag(name)] += [detector_job(spec.name) for spec in catalog.detectors_of(name)]
    by_dag |= {backfill_dag(name): [detector_job(name)] for name in catalog.detectors}
    by_dag |= {rebuild_dag(name): [compute_job(name), view_job(name)] for name in catalog.views}
    return [JobPlace(job=job, dag=dag_of(job)) for job in by_dag.get(dag, [])]


class Looker:
    """Looks for the pages."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._processes = process_reader(settings)
        self._catalog = FollowedCatalog(settings)
        self._episodes: dict[str, tuple[int, list[Episode]]] = {}

    def look(self) -> Snapshot:
        """Look once.

        Raises:
            OSError: the state folder, or a file in it that supervision needs, cannot be read.
        """
        os.listdir(self._settings.state)
        return look(self._settings, self._catalog.read(), self._processes())

    def episodes(self, job: str) -> list[Episode]:
        """Return the episodes of `job`, the newest first."""
        path = chronicle_of(self._settings.state, job)
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        entry = self._episodes.get(job)
        if entry is None or entry[0] != stamp:
            entry = (stamp, episodes(read_events(self._settings.state, job)))
            self._episodes[job] = entry
        return entry[1]
