"""The mail sink: takes every mail and shows it on a web page; nothing leaves the machine."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tocsin.dev.servers.ports import LOOPBACK, accepts
from tocsin.supervise.runners.process_labels import Labels
from tocsin.supervise.runners.runner import Launch

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
            OSError: the folder cannot be written.
        """
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
