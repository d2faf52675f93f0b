"""The jobs of the stack: what is declared now, kept running."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import structlog

from tocsin.alerts.notify.notices import send_overdue
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import Stage
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import detector_job
from tocsin.declare.settings import Settings
from tocsin.dev.startup_progress import Part
from tocsin.supervise.incidents.conditions import CALM_SECONDS
from tocsin.supervise.incidents.watch import mail_no_room
from tocsin.supervise.installed_jobs import InstalledJobs, process_reader
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Desired
from tocsin.supervise.job_status import JobStatus, look
from tocsin.supervise.runners.log_files import rotate
from tocsin.supervise.switches import not_stopped

log = structlog.get_logger()

_STOP_SECONDS = 20.0
_UP = (JobState.RUNNING, JobState.DRAINING)
_WORDS = 300
_WATCH_SECONDS = 5.0
_AWAY_SECONDS = 30.0
# A job that waits for so long waits for what does not come by itself, such as a table of days that nobody has sealed.
_WAITS_SECONDS = 30.0
# The start of a detector takes a core for ten seconds, so those that notify nobody begin after the first findings.
_SHADOW_SECONDS = 30.0


class JobSupervision:
    """All jobs of one installation; those that are processes of this machine end with the launcher."""

    def __init__(self, settings: Settings, java_home: Path, *, supervises: bool = True) -> None:
        """Supervise the jobs of `settings`; if it `supervises` not, Airflow does, and the jobs are only looked at."""
        self._settings, self._supervises = settings, supervises
        self._jobs = InstalledJobs(settings, java_home, tethered=supervises)
        self._processes = process_reader(settings)
        self._watched_at = float("-inf")
        self._ended = threading.Event()
        self._sender = threading.Thread(target=self._send, name="mails", daemon=True)
        if settings.runner.kind == "local":
            self._jobs.supervisor.excuse_ends()  # jobs that outlived it are adopted
        self._desired: dict[str, Desired] = {}
        self._lines: list[Part] = []
        self._waits_since: dict[str, float] = {}
        self._unwritable: OSError | None = None
        self._calm_at = float("-inf")
        self._settled_at: float | None = None

    def tick(self, *, start: bool) -> bool:
        """Bring the jobs into line with what is declared now; returns whether each runs, or is known not to.

        `start` is False as long as what jobs need is not there yet. Raises OSError if the state folder cannot be
        written: see `report_unwritable`.
        """
        catalog = self._jobs.catalog.read()
        declared = desired_jobs(catalog, self._settings)
        self._desired = declared if self._supervises else not_stopped(self._settings.state, declared)
        if self._supervises:
            self._desired = self._without_shadow(catalog)
        if start and self._supervises:
            self._jobs.supervisor.tick(self._desired)
            for job in self._desired:
                rotate(self._settings.log(job))
            if time.monotonic() - self._watched_at >= _WATCH_SECONDS:
                self._watched_at = time.monotonic()
                self._jobs.watch()
            self._start_sender()
        broken = {place.replace("/", " "): str(error) for place, error in catalog.broken.items()}
        self._unwritable = None
        readable = [job for job, wanted in self._desired.items() if wanted.readable]
        snapshot = look(self._settings, catalog, self._processes())
        self._lines = [self._line(snapshot.status(job)) for job in readable]
        self._lines += [Part(place, False, error, failing=True) for place, error in broken.items()]
        is_settled = start and all(line.ready or line.failing for line in self._lines)
        if is_settled and self._settled_at is None:
            self._settled_at = time.monotonic()
        return is_settled

    def _without_shadow(self, catalog: Catalog) -> dict[str, Desired]:
        """Leave out detectors in shadow that do not run, and their engines, until all else has been up for a while."""
        processes = self._processes()
        is_late = self._settled_at is not None and time.monotonic() - self._settled_at >= _SHADOW_SECONDS
        if is_late or processes is None:
            return self._desired
        running = {process.labels.job for process in processes}
        early = {
            name: spec
            for name, spec in catalog.detectors.items()
            if spec.stage is not Stage.SHADOW or detector_job(name) in running
        }
        kept = running | desired_jobs(replace(catalog, detectors=early), self._settings).keys()
        return {job: wanted for job, wanted in self._desired.items() if job in kept}

    def wait_for_end(self, seconds: float) -> bool:
        """Wait `seconds`, or until a job ends that this supervises; returns whether one has."""
        return self._jobs.runner.wait_for_end(seconds)

    def report_unwritable(self, error: OSError) -> None:
        """Let operators know by mail that the state folder cannot be written, until a `tick` finds that it can."""
        self._unwritable = error
        self._start_sender()

    def lines(self) -> list[Part]:
        """Describe each job in a line."""
        return self._lines

    def stop(self) -> None:
        """Stop all jobs of this machine, and send no mail any more; those of a cluster wait for the next supervisor."""
        self._ended.set()
        if self._settings.runner.kind == "local":
            self._jobs.supervisor.stop(_STOP_SECONDS)

    def _start_sender(self) -> None:
        if self._supervises and self._sender.ident is None:
            self._sender.start()

    def _send(self) -> None:
        """Send what the notifier leaves waiting, on a thread of its own: a mail server may take long to answer."""
        pause = _WATCH_SECONDS
        while not self._ended.wait(pause):
            try:
                self._mail_no_room()
                done = send_overdue(self._settings)
                pause = _WATCH_SECONDS if done else _AWAY_SECONDS
            except Exception as error:  # whatever it is, the next mails must leave
                log.exception("mails not sent", error=str(error))

    def _mail_no_room(self) -> None:
        """Mail that the state folder cannot be written, once until an hour has passed without that."""
        error, now = self._unwritable, time.monotonic()
        if error is not None and (now < self._calm_at or mail_no_room(error, self._settings)):
            self._calm_at = now + CALM_SECONDS

    def _line(self, status: JobStatus) -> Part:
        job, word = status.job, status.health
        if status.condition.is_failing:
            return Part(job, False, f"{word}: {status.reason}; {self._last_words(job)}", failing=True)
        since = self._waits_since.setdefault(job, time.monotonic()) if word == JobState.WAITING else None
        if since is None:
            self._waits_since.pop(job, None)
        failing = since is not None and time.monotonic() - since > _WAITS_SECONDS
        text = " ".join(filter(None, (word, status.mode if status.runs else "")))
        reason = "" if word == JobState.RUNNING else status.reason
        return Part(job, word in _UP, f"{text}: {reason}" if reason else text, failing)

    def _last_words(self, job: str) -> str:
        return f"{' '.join(self._jobs.runner.logs(job, 1))[:_WORDS]} ({self._settings.log(job)})"
