"""`python -m tocsin.views <view>`: the job `view:<name>`; `<view>.1`, `<view>.2`: jobs that share its partitions."""

from __future__ import annotations

import sys
import threading

from tocsin.kafka.plain_job import Work, run_named
from tocsin.kafka.reporter import Reporter
from tocsin.model.names import VIEW
from tocsin.project.settings import Settings
from tocsin.views.view_applier_job import ViewApplierJob


def _work(view: str) -> Work:
    def apply(settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
        ViewApplierJob(settings, view, reporter, stop).run()

    return apply


def main(arguments: list[str] | None = None) -> int:
    """Run the job until SIGTERM; returns its `ExitCode`."""
    return run_named("tocsin.views", VIEW, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
