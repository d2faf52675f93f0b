"""Make the versions of tables that are made of history, in one Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.names import refresh_job
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.history.spark.table_versions import refresh
from tocsin.job import Batch
from tocsin.platform.failures import is_disk
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.batch_session import running_batch
from tocsin.spark.tables.dated_versions import DatedVersion

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
    outcome = RefreshOutcome()
    if not tables:
        return outcome
    with running_batch(settings, refresh_job(tables[0].name)) as spark:
        for spec in tables:
            try:
                outcome.made[spec.name] = refresh(spark, settings, spec, catalog.source(str(spec.history)))
            except TocsinError as error:
                outcome.failed[spec.name] = str(error)
                outcome.disk |= is_disk(error)
                log.error("table not refreshed", table=spec.name, error=str(error))
    return outcome


def run(batch: Batch) -> int:
    """Make the versions of all tables that are made of the history of a source; returns the worst `ExitCode`."""
    catalog = read_catalog(batch.settings.project)
    outcome = refresh_tables(batch.settings, catalog, catalog.history_tables(batch.name))
    if not any(outcome.made.values()) and not outcome.failed:
        log.info("no version is due", source=batch.name)
    return outcome.code
