"""`python -m tocsin.log_drain drain`: the one job of this room."""

from __future__ import annotations

import sys

from tocsin.kafka.plain_job import run_program
from tocsin.log_drain.server import serve
from tocsin.model.names import DRAIN


def main(arguments: list[str] | None = None) -> int:
    """Run the job until SIGTERM; returns its `ExitCode`."""
    return run_program("tocsin.log_drain", {DRAIN: serve}, arguments, is_server=True)


if __name__ == "__main__":
    sys.exit(main())
