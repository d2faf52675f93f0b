"""`python -m tocsin.tables <table>`: the job `table:<name>`."""

from __future__ import annotations

import sys
import threading

from tocsin.kafka.plain_job import Work, run_named
from tocsin.kafka.reporter import Reporter
from tocsin.model.names import TABLE
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.tables.file_table_job import FileTableJob
from tocsin.tables.table_job import TableJob, TopicTableJob


def make_job(settings: Settings, table: str, reporter: Reporter, stop: threading.Event) -> TableJob:
    """Make the job that keeps `table`.

    Raises:
        ConfigError: there is no such table.
    """
    spec = read_catalog(settings.project).table(table)
    kind = TopicTableJob if spec.file is None else FileTableJob
    return kind(settings, spec, reporter, stop)


def _work(table: str) -> Work:
    return lambda settings, reporter, stop: make_job(settings, table, reporter, stop).run()


def main(arguments: list[str] | None = None) -> int:
    """Run the job until SIGTERM; returns its `ExitCode`."""
    return run_named("tocsin.tables", TABLE, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
