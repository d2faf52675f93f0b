"""Keep all jobs running and history up to date, without Airflow: `python -m tocsin.dev.unattended`.

Kafka and the mail server run elsewhere, at the addresses in the settings. It is the main process of a container;
SIGTERM stops everything but the jobs of a cluster. Two on one state folder are refused, and so is one beside `dev up`.
"""

from __future__ import annotations

import sys
import threading

from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev import state_folder
from tocsin.dev.job_supervision import JobSupervision
from tocsin.dev.launcher import LOG, hold_state, sweep, unwritable
from tocsin.dev.servers.server_set import TOPICS, DeclaredTopics
from tocsin.dev.startup_progress import Part, progress
from tocsin.dev.unattended.history_rounds import HistoryRounds
from tocsin.platform import logs
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.process_exit import ExitCode, on_signals
from tocsin.setup.java import find_java
from tocsin.supervise.runners.log_files import rotate

_TICK_SECONDS = 1.5


def supervise(settings: Settings, stop: threading.Event) -> None:
    """Run until `stop` is set. Call it from the main thread, since all processes end with the thread.

    Raises:
        ConfigError: something must be changed first: the state folder, the settings, Java.
        StackRuns: another one runs on this state folder.
        OSError: the state folder cannot be written.
    """
    state_folder.prepare(settings.state)
    with hold_state(settings.state):
        settings.log(LOG).parent.mkdir(parents=True, exist_ok=True)
        logs.configure(LOG, file=settings.log(LOG))
        jobs, rounds = JobSupervision(settings, find_java().home), HistoryRounds(settings)
        try:
            _keep(settings, jobs, rounds, stop)
        finally:
            rounds.stop()
            jobs.stop()
            sweep(settings)


def _keep(settings: Settings, jobs: JobSupervision, rounds: HistoryRounds, stop: threading.Event) -> None:
    """Look at everything every 1.5 seconds; jobs start once the topics are there, and later need no look at Kafka."""
    topics, catalog, shown = DeclaredTopics(settings), FollowedCatalog(settings), progress()
    begun = False
    while not stop.wait(_TICK_SECONDS):
        try:
            lacks = topics.missing(catalog.read())
            begun = begun or lacks is None or topics.is_refused  # each job says itself which topic it lacks
            settled = jobs.tick(start=begun)
            rotate(settings.log(LOG))
        except OSError as error:  # a full disk passes; to end here would stop every job
            jobs.report_unwritable(error)
            shown.show([unwritable(error)])
            continue
        shown.show([Part(TOPICS, lacks is None, lacks or "ready", failing=lacks is not None), *jobs.lines()])
        if settled:
            rounds.start()


def main() -> int:
    """Run until SIGTERM; returns an `ExitCode`."""
    stop = threading.Event()
    on_signals(stop)
    try:
        supervise(load_settings(), stop)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return ExitCode.MISCONFIGURED
    except (TocsinError, OSError) as error:
        print(error, file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
