"""The mails in the embedded mail sink, as a reader sees them."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass

from tocsin.declare.model.errors import TransientError

_SECONDS = 5.0


@dataclass(frozen=True)
class Mail:
    """One mail.

    Attributes:
        id: in the sink.
        to: address of the first recipient.
        subject: as a mail program shows it.
        text: its plain text part.
        page: address of the page that shows it as a mail program would.
    """

    id: str
    to: str
    subject: str
    text: str
    page: str


class Mailbox:
    """The sink whose page is at `address`, such as http://127.0.0.1:1080."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    def mails(self) -> list[Mail]:
        """All mails, the oldest first.

        Raises:
            TransientError: the sink does not answer; a retry helps.
        """
        try:
            with urllib.request.urlopen(f"{self.address}/mails.json", timeout=_SECONDS) as answer:
                listed = json.load(answer)
        except (OSError, ValueError) as error:
            raise TransientError(f"the mail sink at {self.address} does not answer: {error}") from error
        return [self._mail(mail) for mail in listed]

    def _mail(self, mail: dict[str, object]) -> Mail:
        to = mail.get("to")
        first = to[0] if isinstance(to, list) and to else {}
        return Mail(
            id=str(mail.get("id", "")),
            to=str(first.get("address", "")),
            subject=str(mail.get("subject", "")),
            text=str(mail.get("text", "")).strip(),
            page=f"{self.address}/mail/{mail.get('id', '')}",
        )
