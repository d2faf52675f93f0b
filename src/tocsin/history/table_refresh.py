"""Make the versions of tables that are made of history, in one Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.names import refresh_job
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.history.spark.table_versions import refresh
from tocsin.job import Batch
from tocsin.platform.environments import python_for, run_by
from tocsin.platform.failures import is_disk
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.batch_session import running_batch
from tocsin.spark.tables.dated_versions import DatedVersion, DatedVersions

log = structlog.get_logger()


@dataclass
class RefreshOutcome:
    """The outcome for each table, by name: versions that were due (none if all were there), or why none could be made.

    `disk` is true if one failed because the disk is full or cannot be written.
    """

    made: dict[str, list[DatedVersion]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    disk: bool = False

    @property
    def code(self) -> ExitCode:
        """The code of the worst table."""
        if self.failed:
            return ExitCode.UNWRITABLE if self.disk else ExitCode.FAILED
        return ExitCode.OK


def refresh_tables(settings: Settings, catalog: Catalog, tables: Sequence[TableSpec]) -> RefreshOutcome:
    """Make the versions of `tables` that are due; one that fails harms no other."""
    outcome, own = RefreshOutcome(), list[TableSpec]()
    for spec in tables:
        with _noting_failure(outcome, spec):
            # The features of a model are computed by the detector's file, which may import what is there alone.
            python = python_for(settings, spec.trains) if spec.trains else None
            if python is None:
                own.append(spec)
            else:
                outcome.made[spec.name] = _refresh_by(python, settings, spec)
    if not own:
        return outcome
    with running_batch(settings, refresh_job(own[0].name)) as spark:
        for spec in own:
            with _noting_failure(outcome, spec):
                outcome.made[spec.name] = refresh(spark, settings, spec, catalog.source(str(spec.history)))
    return outcome


def _refresh_by(python: Path, settings: Settings, spec: TableSpec) -> list[DatedVersion]:
    began = datetime.now(UTC)
    if code := run_by(python, ["-m", "tocsin.cli", "table", spec.name, "--refresh"]):
        what = f"refreshing it by {python} ended with code {code}, and the reason that it wrote above"
        raise TocsinError(f"{what}; what was in force stays. Try it: tocsin table {spec.name} --refresh")
    return [version for version in DatedVersions(settings, spec).read() if version.made_at >= began]


@contextmanager
def _noting_failure(outcome: RefreshOutcome, spec: TableSpec) -> Iterator[None]:
    try:
        yield
    except TocsinError as error:
        outcome.failed[spec.name] = str(error)
        outcome.disk |= is_disk(error)
        log.error("table not refreshed", table=spec.name, error=str(error))


def run(batch: Batch) -> int:
    """Make the versions of all tables that are made of the history of a source; returns the worst `ExitCode`."""
    catalog = read_catalog(batch.settings.project)
    outcome = refresh_tables(batch.settings, catalog, catalog.history_tables(batch.name))
    if not any(outcome.made.values()) and not outcome.failed:
        log.info("no version is due", source=batch.name)
    return outcome.code
