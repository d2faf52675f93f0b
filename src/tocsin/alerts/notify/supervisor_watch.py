"""Mail operators when the supervisor no longer looks at the jobs: it cannot mail about itself.

It may have died, hang, be paused in Airflow, or lack room on the disk. The notifier runs on meanwhile.
"""

from __future__ import annotations

import time

import structlog

from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import operators, post
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import seconds_since_look

PATIENCE_SECONDS = 300.0
_HOUR = 3600.0
_LOOK_SECONDS, _RETRY_SECONDS = 10.0, 60.0

log = structlog.get_logger()


class SupervisorWatch:
    """Looks at the supervisor's sign of life, and posts one message an absence, at most one an hour. For one thread."""

    def __init__(self, settings: Settings) -> None:
        """Watch the supervisor of `settings`; one that has never looked is not expected to."""
        self._settings, self._look_at = settings, 0.0
        self._name, self._reached = "", set[str]()

    def look(self) -> None:
        """Look, if it is time; never raises because a message cannot leave: a later look tries again."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        silent = seconds_since_look(self._settings.state)
        if silent is None or silent < PATIENCE_SECONDS:
            return
        # Named by the hour of the last look: another notifier posts the same message, which leaves once.
        name = f"unsupervised__{int((time.time() - silent) // _HOUR)}"
        if name != self._name:
            self._name, self._reached = name, set()
        try:
            to = sorted(set(operators(read_catalog(self._settings.project), self._settings)))
            if not self._reached.issuperset(to):
                self._look_at = time.monotonic() + _RETRY_SECONDS
                self._reached = post(_notice(silent), name, to, self._settings, self._reached)
        except TocsinError as error:
            log.warning("message about the supervisor waiting", error=str(error))


def _notice(silent: float) -> Notice:
    return Notice(
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
