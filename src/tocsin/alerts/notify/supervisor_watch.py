"""Mail operators when the supervisor no longer looks at the jobs: it cannot mail about itself.

It may have died, hang, be paused in Airflow, or lack room on the disk. The notifier runs on meanwhile.
"""

from __future__ import annotations

import time

import structlog

from tocsin.alerts.notify.direct_mail import operators, send_now
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.model.durations import span
from tocsin.model.errors import TocsinError
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.heartbeat import seconds_since_look

PATIENCE_SECONDS = 300.0
_CALM_SECONDS = 3600.0
_LOOK_SECONDS, _RETRY_SECONDS = 10.0, 60.0

log = structlog.get_logger()


class SupervisorWatch:
    """Looks at the supervisor's sign of life, and mails once an absence, at most once an hour. For one thread."""

    def __init__(self, settings: Settings) -> None:
        """Watch the supervisor of `settings`; one that has never looked is not expected to."""
        self._settings = settings
        self._file = settings.state / "supervision" / "unsupervised.json"
        self._mailed_at, self._look_at = 0.0, 0.0
        self._reached: set[str] = set()

    def look(self) -> None:
        """Look, if it is time; never raises because a mail cannot leave: a later look tries again."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        silent = seconds_since_look(self._settings.state)
        if silent is None or silent < PATIENCE_SECONDS:
            self._reached.clear()
            return
        try:
            now = time.time()
            self._mailed_at = max(self._mailed_at, state_file.read(self._file, float, 0.0))
            if self._mailed_at < now - max(silent, _CALM_SECONDS) and self._send(silent):
                self._mailed_at = now  # on a full disk this is all that remembers it
                state_file.write(self._file, float, now)
        except (TocsinError, OSError) as error:
            log.warning("mail about the supervisor waiting", error=str(error))

    def _send(self, silent: float) -> bool:
        """Send the mail to all who have not got it; returns whether nobody is left."""
        notice = Notice(
            subject="[tocsin] supervisor: does not look at the jobs",
            paragraphs=(
                f"The supervisor last looked at the jobs {span(silent)} ago. Jobs that run go on, one that fails is "
                "not restarted, and mails about conditions do not leave.",
                "Start it again: `tocsin dev up`, or the service or container that runs it. In Airflow, unpause the "
                "DAG `supervisor` and look at its last run. If the disk is full, make room.",
                "Runbook: docs/run/runbooks.md#supervisor. We will mail again only if it looks and stops again.",
            ),
            commands=["tocsin status", "tocsin doctor"],
        )
        to = set(operators(read_catalog(self._settings.project), self._settings))
        self._look_at = time.monotonic() + _RETRY_SECONDS
        self._reached |= send_now(notice, sorted(to - self._reached), self._settings)
        return self._reached >= to
