"""The mail sink, which takes every mail and shows it on a web page: as the stack starts it, and as a reader sees it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tocsin.declare.model.errors import TransientError
from tocsin.dev.servers.ports import LOOPBACK, accepts
from tocsin.supervise.runners.runner import Labels, Launch

NAME = "mail"
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class MailSink:
    """The mail sink of one state folder; `folder` holds the mails."""

    folder: Path
    log: Path
    smtp_port: int
    web_port: int

    @property
    def url(self) -> str:
        """Address of its page, and of its API."""
        return f"http://{LOOPBACK}:{self.web_port}"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start; errors as of `Server.launch`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = ["--smtp", str(self.smtp_port), "--page", str(self.web_port)]
        command = [sys.executable, "-P", "-m", "tocsin.dev.servers.mail_server", *ports, "--folder", str(self.folder)]
        labels = Labels(instance, NAME, hashlib.sha256(" ".join(command).encode()).hexdigest()[:12])
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        return Launch(
            labels=labels,
            command=(*command, *labels.arguments()),
            environment=environment | {"TZ": "UTC"},
            directory=self.folder,
            log=self.log,
        )

    def waiting_for(self) -> str | None:
        """Name what it still lacks to take and show mail; None when nothing."""
        return next((f"port {port}" for port in (self.smtp_port, self.web_port) if not accepts(port)), None)


@dataclass(frozen=True)
class Mail:
    """One mail, with the first recipient, the plain text part, and the address of the page that shows it."""

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
        """List all mails, the oldest first; raises TransientError if the sink does not answer, and a retry helps."""
        try:
            with urllib.request.urlopen(f"{self.address}/mails.json", timeout=_ANSWER_SECONDS) as answer:
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
