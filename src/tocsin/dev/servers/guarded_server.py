"""A server on loopback that asks for a password, which is made once for each state folder."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tocsin.dev.servers.ports import accepts
from tocsin.platform.state_file import write_whole
from tocsin.supervise.runners.process_labels import Labels, leading
from tocsin.supervise.runners.runner import Launch

_PRIVATE = 0o600
_INHERITED = ("PATH", "HOME", "TMPDIR", "LANG")


@dataclass(frozen=True)
class GuardedServer(ABC):
    """A `server_set.Server` of one state folder; `folder` holds its data, its configuration and its password."""

    name: ClassVar[str]

    folder: Path
    log: Path
    port: int
    program: Path

    @property
    @abstractmethod
    def address(self) -> str:
        """Give the address for clients, with the password."""

    @property
    def address_file(self) -> Path:
        """Name the file that holds the address."""
        return self.folder / "address"

    def publish(self) -> None:
        """Write the address to its file; raises OSError if the folder cannot be written."""
        write_whole(self.address_file, f"{self.address}\n", mode=_PRIVATE)

    @abstractmethod
    def launch(self, instance: str) -> Launch:
        """See `Server`."""

    def waiting_for(self) -> str | None:
        """See `Server`."""
        return None if accepts(self.port) else f"port {self.port}"

    def _password(self) -> str:
        path = self.folder / "password"
        if not path.exists():
            write_whole(path, secrets.token_urlsafe(24), mode=_PRIVATE)
        return path.read_text(encoding="utf-8")

    def _configure(self, name: str, text: str) -> Path:
        path = self.folder / name
        write_whole(path, text, mode=_PRIVATE)
        return path

    def _launch(self, instance: str, command: Sequence[str], configuration: str = "") -> Launch:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {"TZ": "UTC"}
        spec = hashlib.sha256(json.dumps([*command, configuration]).encode()).hexdigest()[:12]
        return Launch(
            labels=Labels(instance, self.name, spec),
            command=leading(command),
            environment=environment,
            directory=self.folder,
            log=self.log,
        )
