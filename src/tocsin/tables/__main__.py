"""`python -m tocsin.tables <table>`: the job `table:<name>`."""

from __future__ import annotations

import sys
import threading

from tocsin.kafka.plain_job import Work, run_named
from tocsin.kafka.reporter import Reporter
from tocsin.model.names import TABLE
from tocsin.project.settings import Settings
from tocsin.tables.table_job import TableJob


def _work(table: str) -> Work:
    def keep(settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
        TableJob(settings, table, reporter, stop).run()

    return keep


def main(arguments: list[str] | None = None) -> int:
    """Run the job until SIGTERM; returns its `ExitCode`."""
    return run_named("tocsin.tables", TABLE, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
