"""The mail sink: takes every mail and shows it on a web page; nothing leaves the machine."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tocsin.dev.servers.ports import LOOPBACK, accepts
from tocsin.provision.node import mail_sink
from tocsin.supervision.runners.process_labels import Labels
from tocsin.supervision.runners.runner import Launch

NAME = "mail"


@dataclass(frozen=True)
class MailSink:
    """The mail sink of one state folder.

    Attributes:
        folder: holds the mails.
        log: file that gets its log lines.
        smtp_port: takes mail.
        web_port: shows it.
    """

    folder: Path
    log: Path
    smtp_port: int
    web_port: int

    @property
    def url(self) -> str:
        """Address of its page, and of its API."""
        return f"http://{LOOPBACK}:{self.web_port}"

    def launch(self, instance: str) -> Launch:
        """Describe the process to start.

        Raises:
            ConfigError: it is not installed.
            OSError: the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Its defaults are all addresses, for the page as well.
        where = ["--ip", LOOPBACK, "--smtp", str(self.smtp_port), "--web-ip", LOOPBACK, "--web", str(self.web_port)]
        command = [*mail_sink(), *where, "--mail-directory", str(self.folder)]
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
        if not accepts(self.smtp_port):
            return f"port {self.smtp_port}"
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2.0) as answer:
                return None if answer.status == 200 else "its page"
        except (urllib.error.URLError, OSError):
            return "its page"
