"""Gather what the pages know of an installation: the last look that worked, and what is read in the background."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.alerts.store.alert_rows import JobUsage
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.job_report import SILENT_SECONDS, JobState
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
from tocsin.history.day_rows import DayRows
from tocsin.history.model_versions import ModelVersion, model_versions
from tocsin.history.seal_outcomes import refusal
from tocsin.platform.background_value import BackgroundValue, Fetched
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.state_file import Followed
from tocsin.spark.tables.dated_versions import DatedVersions, RefusedVersion
from tocsin.supervise.dag_specs import declared_facts
from tocsin.supervise.incidents.event_log import ProcessEnd, event_log_path, last_restart, process_ends, read_events
from tocsin.supervise.installed_jobs import process_reader
from tocsin.supervise.job_status import Severity, Snapshot, look, unsupervised_reason
from tocsin.supervise.planning.desired_inputs import memory_limit
from tocsin.web.job_rows import GROUPS, JobRow, Loads, job_row, read_usage
from tocsin.web.parity_page import Comparisons, Parity

# Everybody who looks at the same time shares one look.
_LOOK_SECONDS = 1.5
_USAGE_SECONDS = 45.0
# A page whose figures of the day are blank or old says less than one that comes so much later.
_PATIENCE_SECONDS = 4.0
LOG_LINES = 200
_LOG_BYTES = 128 * 1024
_SEARCHED_BYTES = 8 * 1024 * 1024
_LONGEST_LINE = 2000
Models = tuple[list[ModelVersion], list[RefusedVersion]]


@dataclass(frozen=True)
class Note:
    """Something about the whole: what is not known, and why."""

    severity: Severity
    text: str


@dataclass(frozen=True)
class JobList:
    """All jobs, at one moment."""

    looked_at: float | None
    notes: list[Note]
    rows: list[JobRow]


@dataclass(frozen=True)
class LogTail:
    """The end of the log of a job; `cut` if there is more in the file.

    `lines` are oldest first, the very long ones cut; `written_at` is None when there is no file, else in epoch seconds.
    """

    path: Path
    lines: list[str]
    written_at: float | None = None
    cut: bool = False


class Installation:
    """Answers every page; never raises because something cannot be read: then it says so, and what it knew before."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._processes, self._catalog = process_reader(settings), FollowedCatalog(settings)
        self._loads = Loads()
        self._ends: dict[str, Followed[list[ProcessEnd]]] = {}
        self._comparisons = Comparisons(settings.state)
        self._usage = BackgroundValue(lambda: read_usage(settings), _USAGE_SECONDS)
        self._models: dict[str, BackgroundValue[Models]] = {}
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._looked_at = float("-inf")
        self._fault = ""

    def prepare(self) -> None:
        """Begin to read what takes long, so that the first page finds it."""
        self._usage.known()

    def jobs(self, off: Mapping[str, bool]) -> JobList:
        """List all jobs; `off` says by DAG whether it is paused; a DAG that Airflow has not read yet is missing."""
        snapshot = self._look()
        return JobList(snapshot.at if snapshot else None, list(self._notes(snapshot)), self._rows(snapshot, off))

    def crashes(self, job: str) -> list[ProcessEnd]:
        """The crashes of `job`, the newest first: no hand-overs, and no stops that somebody asked for."""
        return [end for end in self._process_ends(job) if end.failed]

    def declaration(self, job: str) -> dict[str, str]:
        """List by name what the file of the detector `job` declares, and what it may hold; nothing for other jobs."""
        snapshot, own = self._look(), JobName.parse(job)
        spec = snapshot.catalog.detectors.get(own.name) if snapshot and own.kind == DETECTOR else None
        if snapshot is None or spec is None:
            return {}
        limit = memory_limit(self.settings, snapshot.catalog.sources_of(spec), spec.memory)
        memory = f"restarted above {limit / 1e6:,.0f} MB{' (by the settings)' if spec.memory is None else ''}"
        return {"what it catches": spec.doc, **declared_facts(spec), "memory": memory}

    def parity(self, detector: str) -> Parity:
        """Compare the findings of stream and backfill of `detector`."""
        return self._comparisons.of(detector)

    def models(self, detector: str) -> Fetched[Models] | None:
        """Find the models of `detector`, the newest first, and those that were refused; None if it has no model."""
        snapshot = self._look()
        spec = snapshot.catalog.detectors.get(detector) if snapshot else None
        table = snapshot.catalog.tables.get(spec.model_table) if snapshot and spec and spec.model else None
        if table is None:
            return None

        def read() -> Models:
            return model_versions(self.settings, table)[::-1], DatedVersions(self.settings, table).refused()[::-1]

        # In the background, for they may lie in an object store.
        known = self._models.setdefault(f"{detector} {table.made_by}", BackgroundValue(read, _USAGE_SECONDS))
        return known.known(_PATIENCE_SECONDS)

    def beside(self, dag: str) -> list[str]:
        """The jobs on whose events or findings the batches of `dag` work; none for a DAG without batches."""
        snapshot = self._look()
        return _beside(dag, snapshot.catalog) if snapshot else []

    def detectors(self) -> dict[str, DetectorSpec]:
        """The declarations of detectors that can be read, by name."""
        snapshot = self._look()
        return dict(snapshot.catalog.detectors) if snapshot else {}

    def why_idle(self, matcher: AlertMatcher) -> str:
        """Say why a silence of `matcher` mutes nothing; see `Catalog.why_idle`."""
        snapshot = self._look()
        return snapshot.catalog.why_idle(matcher) if snapshot else ""

    def dags(self) -> set[str]:
        """The DAGs that handle jobs."""
        snapshot = self._look()
        return {dag_of(job) for job in snapshot.jobs} if snapshot else set()

    def _rows(self, snapshot: Snapshot | None, off: Mapping[str, bool]) -> list[JobRow]:
        if snapshot is None:
            return []
        usage, order = self._usage.known(_PATIENCE_SECONDS), list(GROUPS)
        rows = [self._row(snapshot, job, usage, off) for job in snapshot.jobs]
        return sorted(rows, key=lambda row: order.index(row.group))

    def _row(
        self, snapshot: Snapshot, job: str, usage: Fetched[dict[str, JobUsage]], off: Mapping[str, bool]
    ) -> JobRow:
        row = job_row(snapshot, job, (usage.value or {}).get(job), self._loads.of(job), off.get(dag_of(job)))
        unexplained = self._comparisons.of(row.name).unexplained if row.kind == DETECTOR else 0
        restart = last_restart(self._process_ends(job))
        return row.model_copy(update={"today_at": usage.at, "unexplained": unexplained, "last_restart": restart})

    def _look(self) -> Snapshot | None:
        """The last look that worked, at most some seconds old unless nothing can be read."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                try:
                    os.listdir(self.settings.state)  # or a look would find no job, and say nothing
                    self._snapshot = look(self.settings, self._catalog.read(), self._processes())
                    self._fault = ""
                    for beat in self._snapshot.beats.values():
                        self._loads.take(beat.report)
                except Exception as error:  # a page that explains is worth more than one that fails
                    self._fault = printable(f"{type(error).__name__}: {error}")
                self._looked_at = time.monotonic()
            return self._snapshot

    def _notes(self, snapshot: Snapshot | None) -> Iterator[Note]:
        problem, warning = Severity.PROBLEM, Severity.WARNING
        if self._fault:
            what = f"The state of the jobs cannot be read ({self._fault})"
            yield Note(problem, f"{what}. What is shown is what was read before.")
        if reason := _kafka_away(snapshot):
            yield Note(problem, f"{printable(reason)}. Jobs wait for it and go on by themselves; nothing is lost.")
        if unsupervised := unsupervised_reason(snapshot.looked_seconds if snapshot else None):
            what = f"{unsupervised[0].upper()}{unsupervised[1:]}"
            yield Note(problem, f"{what}. Is its DAG paused, or the scheduler down?")
        try:
            for source in snapshot.catalog.sources if snapshot else ():
                if days := DayRows(self.settings, source).refused():
                    yield Note(problem, f"{refusal(source, days)}.")
        except (TocsinError, OSError) as error:
            yield Note(problem, f"{printable(str(error))}.")
        usage = self._usage.known()
        if usage.error:
            effect = "it is not known" if usage.at is None else "what is shown is older"
            yield Note(warning, f"What the jobs took today cannot be read ({printable(usage.error)}); {effect}.")

    def _process_ends(self, job: str) -> list[ProcessEnd]:
        """List how the processes of `job` ended, the newest first; read again only when something was added."""
        if job not in self._ends:
            state, path = self.settings.state, event_log_path(self.settings.state, job)
            self._ends[job] = Followed(lambda: [path], lambda: process_ends(read_events(state, job)))
        return self._ends[job].read()


def _kafka_away(snapshot: Snapshot | None) -> str:
    """Find what a job says that waits for Kafka; empty if none does."""
    beats = snapshot.beats.values() if snapshot else ()
    waiting = (beat.report for beat in beats if beat.age_seconds <= SILENT_SECONDS)
    reasons = (report.reason for report in waiting if report.state is JobState.WAITING)
    return next((reason for reason in reasons if "Kafka" in reason), "")


def _beside(dag: str, catalog: Catalog) -> list[str]:
    by_dag = {history_dag(name): [feeder.job for feeder in catalog.upstream(name)[:1]] for name in catalog.sources}
    for name in catalog.sources:
        by_dag[history_dag(name)] += [detector_job(spec.name) for spec in catalog.detectors_of(name)]
    by_dag |= {backfill_dag(name): [detector_job(name)] for name in catalog.detectors}
    by_dag |= {rebuild_dag(name): [compute_job(name), view_job(name)] for name in catalog.views}
    return by_dag.get(dag, [])


def tail_of(log: Path, text: str = "") -> LogTail:
    """Read the last lines of `log`, or of those that contain `text` in whatever case, made safe to show.

    There are none when it cannot be read. It may be of any length: with `text` its last 8 MiB are searched.
    """
    most = _SEARCHED_BYTES if text else _LOG_BYTES
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            read = file.read(most)
            written_at = os.fstat(file.fileno()).st_mtime
    except OSError:
        return LogTail(log, [])
    lines = read.decode(errors="replace").split("\n")
    if size > most:
        lines = lines[1:]  # its beginning was not read
    if lines and not lines[-1]:
        lines.pop()
    if text:
        lines = [line for line in lines if text.lower() in line.lower()]
    shown = [_short(line.rstrip("\r")) for line in lines[-LOG_LINES:]]
    return LogTail(log, shown, written_at, cut=size > most or len(lines) > LOG_LINES)


def _short(line: str) -> str:
    text = printable(line.replace("\t", "    "))
    return (
        text
        if len(text) <= _LONGEST_LINE
        else f"{text[:_LONGEST_LINE]} … ({len(text) - _LONGEST_LINE:,} more characters)"
    )
