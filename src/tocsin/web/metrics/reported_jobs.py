"""Collect the status of all jobs, with their last reports from Kafka, for `tocsin status` and the exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from tocsin.alerts.store.queries import last_findings, open_store
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError, Fault, TocsinError, TransientError, nearest
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings
from tocsin.dev.control import wanted_jobs
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.supervise.installed_jobs import process_reader
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_status import JobStatus, look


@dataclass(frozen=True)
class StatusReading:
    """One look at all jobs.

    Attributes:
        kafka_away: why the reports are not Kafka's but this machine's heartbeats; empty if they are Kafka's.
    """

    jobs: Sequence[JobStatus]
    kafka_away: str
    findings_unknown: str = ""


class StatusReader:
    """Reads the status of the jobs of an installation, as often as asked. For one thread."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Mapping[str, JobReport]],
        catalog: Callable[[], Catalog] | None = None,
    ) -> None:
        """`read` raises TransientError while Kafka is away; `catalog` returns what is in force; None: files."""
        self._settings, self._read_reports = settings, read
        self._processes = process_reader(settings)
        self._catalog = catalog or FollowedCatalog(settings).read

    def read(self, only: str | None = None, *, with_findings: bool = False) -> StatusReading:
        """Look at all jobs, or at one, and on request at when the last finding of each detector's job arrived.

        Raises:
            ConfigError: there is no such job, or the desired jobs cannot be read.
        """
        catalog = self._catalog()
        wanted = self._wanted(catalog, only)
        found, unknown = _last_findings(self._settings) if with_findings else ({}, "")
        snapshot = look(self._settings, catalog, self._processes())
        try:
            reports, away = dict(self._read_reports()), ""
        except (ConfigError, TransientError) as error:
            reports, away = {job: beat.report for job, beat in snapshot.beats.items()}, str(error)
        known = {job: report for job, report in reports.items() if only in (None, job)}
        return StatusReading(snapshot.statuses(wanted, known, found), away, unknown)

    def _wanted(self, catalog: Catalog, only: str | None) -> list[str]:
        if only is None:
            return list(wanted_jobs(self._settings, catalog))
        declared = list(desired_jobs(catalog, self._settings))
        if only not in declared:
            raise ConfigError([Fault("status", f"there is no job '{only}' here", nearest=nearest(only, declared))])
        return [only]


def _last_findings(settings: Settings) -> tuple[dict[str, datetime], str]:
    """Read when the latest finding of each detector's job arrived; and why that is not known, if it is not."""
    try:
        with closing(open_store(settings)) as database:
            return last_findings(database), ""
    except TocsinError as error:
        return {}, str(error)
