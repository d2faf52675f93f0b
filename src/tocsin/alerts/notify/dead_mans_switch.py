"""Give a sign of life to somebody outside, who alarms people when it no longer comes: the watch over the watchers.

Nothing in an installation can report that all of it is gone. So the notifier, through which every message leaves, asks
a URL, or sends a message, at an interval; but only after a round of its own that worked, and while the supervisor looks
at the jobs. A message goes the whole way through the outbox and its receiver; a request shows that the round worked.
"""

from __future__ import annotations

import threading
import time

import httpx
import structlog

from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import put
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import seconds_since_look

SUPERVISOR_SECONDS = 300.0
"""A supervisor that has not looked for so long does not watch."""
_REQUEST_SECONDS = 10.0
_EVERY_SECONDS = 300.0
_log = structlog.get_logger()


class DeadMansSwitch:
    """Gives the signs of one installation; does nothing unless `alerts.heartbeat` is set. For one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._due = settings, float("-inf")
        self._request: threading.Thread | None = None

    def worked(self) -> None:
        """A round of the notifier has worked: give a sign if it is time. Never raises, and waits for nobody."""
        target = self._settings.alerts.heartbeat
        if target is None or time.monotonic() < self._due:
            return
        silent = seconds_since_look(self._settings.state)
        if silent is not None and silent >= SUPERVISOR_SECONDS:
            return
        self._due = time.monotonic() + _EVERY_SECONDS
        if not target.startswith(("http://", "https://")):
            self._send(target)
        elif self._request is None or not self._request.is_alive():
            self._request = threading.Thread(target=_ask, args=(target,), name="heartbeat", daemon=True)
            self._request.start()

    def _send(self, to: str) -> None:
        notice = Notice(
            subject="[tocsin] heartbeat",
            paragraphs=(
                "Supervisor and notifier work. This message comes every five minutes: when it stops, nobody watches "
                "the jobs, or messages do not leave.",
            ),
            commands=["tocsin status", "tocsin doctor"],
        )
        try:
            put(notice, f"heartbeat__{int(time.time() // _EVERY_SECONDS)}", [to], self._settings)
        except OSError as error:
            _log.warning("heartbeat not sent", error=str(error))


def _ask(url: str) -> None:
    try:
        response = httpx.get(url, timeout=_REQUEST_SECONDS)
        why = "" if response.is_success else f"it answers {response.status_code}"
    except httpx.HTTPError as error:
        why = str(error)[:500]
    if why:  # without the address, whoever knows which can give the sign
        _log.warning("heartbeat not taken", error=why)
