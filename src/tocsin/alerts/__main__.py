"""`python -m tocsin.alerts indexer` and `... notifier`: the two jobs of this room."""

from __future__ import annotations

import sys
import threading

from tocsin.alerts.indexer import IndexerJob
from tocsin.alerts.notify.notifier_job import NotifierJob
from tocsin.kafka.plain_job import run_program
from tocsin.kafka.reporter import Reporter
from tocsin.model.names import INDEXER, NOTIFIER
from tocsin.project.settings import Settings


def _index(settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
    IndexerJob(settings, reporter, stop).run()


def _notify(settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
    NotifierJob(settings, reporter, stop).run()


def main(arguments: list[str] | None = None) -> int:
    """Run one job until SIGTERM; returns its `ExitCode`."""
    return run_program("tocsin.alerts", {INDEXER: _index, NOTIFIER: _notify}, arguments)


if __name__ == "__main__":
    sys.exit(main())
