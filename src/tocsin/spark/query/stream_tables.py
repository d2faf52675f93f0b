"""The tables that a running query joins: wait for their first rows, then let each batch read the newest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta

import structlog
from pyspark.sql import SparkSession

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.spark.declared_function import Declared
from tocsin.spark.query.work import WAIT_SECONDS, Run
from tocsin.spark.tables.spark.joined_tables import FollowedTables, open_tables

_REFRESH_SECONDS, _REFRESH_SECONDS_STORED = 1.0, 5.0  # an object store asks money for each request
log = structlog.get_logger()
Joining = Declared | FlowSpec


class StreamTables:
    """The tables of one job; `tables` is None if its declaration joins none."""

    def __init__(self, settings: Settings, declared: Joining, sources: Sequence[Source], batch_seconds: int) -> None:
        """Read the declarations. ConfigError if a row of one would hold before a batch has read it."""
        self.tables: FollowedTables | None = None
        self._settings, self._declared = settings, declared
        self._session: SparkSession | None = None
        self._behind, self._refreshed = "", 0.0
        if declared.tables:
            check_settle(settings, declared, sources, batch_seconds)

    def await_rows(self, run: Run) -> bool:
        """Open them in the session of `run`, once they have rows; False when asked to stop before that."""
        if not self._declared.tables:
            return True
        retry = run.retry()
        while not run.is_stopping and self._session is not run.spark:
            try:
                self.tables = open_tables(run.spark, self._settings, self._declared.tables, self._declared.path)
                self._session = run.spark
            except TransientError as error:
                retry.failed(str(error), WAIT_SECONDS)
        return self._session is run.spark

    def newest(self) -> FollowedTables | None:
        """Return them with the newest rows: what is planned next must not join those of a time when nothing ran."""
        self._refreshed = 0.0
        self.refresh()
        return self.tables

    def refresh(self) -> None:
        """Let the next batch read the newest rows, and log when they are older than they should be; now and then."""
        if self.tables is None or time.monotonic() < self._refreshed + _refresh_seconds(self._settings):
            return
        self._refreshed = time.monotonic()
        with contextlib.suppress(TransientError):
            behind = self.tables.refresh()
            if bool(behind) != bool(self._behind):
                log.warning("rows of tables", reason=behind or "are new again")
            self._behind = behind


def check_settle(settings: Settings, declared: Joining, sources: Sequence[Source], batch_seconds: int) -> None:
    """Check that a batch of `declared` has read each row of its tables before that holds.

    A row is published within a quarter of `settle`, looked for within some seconds, and read by the next batch, whose
    events are up to `max_ahead` ahead of the clock. Raises a ConfigError if `settle` is too short, or there is no such
    table.
    """
    catalog = read_catalog(settings.project)
    late = _refresh_seconds(settings) - _REFRESH_SECONDS
    needed = (timedelta(seconds=batch_seconds + late) + max(source.max_ahead for source in sources)) * 4 / 3
    for name in declared.tables:
        if catalog.table(name).settle < needed:
            what = f"is too short for {declared.path.name}, whose batches take {batch_seconds} s: at least "
            what += f"{needed.total_seconds():.0f} seconds, or shorter batches (spark.trigger_seconds)"
            raise ConfigError.one(settings.project / "tables" / f"{name}.toml", what, key="settle")


def _refresh_seconds(settings: Settings) -> float:
    return _REFRESH_SECONDS_STORED if settings.storage.is_remote else _REFRESH_SECONDS
