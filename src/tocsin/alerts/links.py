"""Addresses of the pages about alerts, for mails and receivers; those that answer are signed and expire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import quote

from itsdangerous import BadSignature, URLSafeSerializer

from tocsin.declare.model.names import dag_of
from tocsin.declare.settings import Settings
from tocsin.platform.state_file import read_or_make_secret

VALID_FOR = timedelta(days=7)
SILENCED_FOR = timedelta(hours=1)
_SECRET = "web.secret"


class LinkAction(StrEnum):
    """What a signed link does once its button is pressed."""

    ACKNOWLEDGE = "acknowledge"
    SILENCE_HOUR = "silence_hour"
    FALSE_ALARM = "false_alarm"


@dataclass(frozen=True)
class Answer:
    """The content of a signed link: what `recipient`, to whom it was sent, does about an alert."""

    alert: int
    action: LinkAction
    recipient: str


class LinkRefused(ValueError):
    """The link is forged, damaged or too old; the text says what to do."""


class Links:
    """The addresses of an installation; each is empty when it has none, see `web.address`."""

    def __init__(self, settings: Settings) -> None:
        self._base = settings.web_address
        self._state = settings.state

    def alert(self, alert_id: int) -> str:
        """Return the address of an alert's page."""
        return self._page(f"alerts/{alert_id}")

    def alerts(self, detector: str = "") -> str:
        """Return the address of the page that lists alerts, of one detector or of all."""
        return self._page(f"alerts?detector={quote(detector)}" if detector else "alerts")

    def job(self, job: str) -> str:
        """Return the address of the page of a job and its log."""
        return self._page(f"job?dag_id={quote(dag_of(job))}")

    def runbook(self, detector: str) -> str:
        """Return the address of a detector's runbook as a page."""
        return self._page(f"runbooks/{quote(detector)}")

    def answer(self, alert_id: int, action: LinkAction | str, recipient: str, now: datetime) -> str:
        """Return the address at which `recipient` answers without a login, for seven days from `now`.

        OSError if the secret that signs cannot be read or made.
        """
        if not self._base:
            return ""
        expires = int((now + VALID_FOR).timestamp())
        return self._page(f"answer/{self._signer().dumps([alert_id, LinkAction(action).value, recipient, expires])}")

    def read(self, token: str, now: datetime) -> Answer:
        """Read what `answer` has signed; LinkRefused if that was not so, or too long ago. OSError as of `answer`."""
        try:
            alert_id, action, recipient, expires = self._signer().loads(token)
        except BadSignature as error:
            what = "This link is damaged or was not made here. Open it from the mail again, unshortened; or log in."
            raise LinkRefused(what) from error
        if now.timestamp() >= expires:
            raise LinkRefused(f"This link has expired: it was good for {VALID_FOR.days} days. Log in to act.")
        return Answer(alert_id, LinkAction(action), recipient)

    def _signer(self) -> URLSafeSerializer:
        return URLSafeSerializer(read_or_make_secret(self._state / _SECRET), salt="tocsin.answer")

    def _page(self, path: str) -> str:
        return f"{self._base}/{path}" if self._base else ""
