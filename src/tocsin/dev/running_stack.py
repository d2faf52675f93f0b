"""Publish what others need of a running stack: the settings that lead to it, and the addresses of its pages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.declare.settings import RUNNING_FILE
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.platform import state_file
from tocsin.platform.state_file import write_whole

_ABOUT_FILE = "stack.json"


@dataclass(frozen=True)
class Running:
    """A stack that runs.

    Attributes:
        pid: of its launcher.
        drain_port, web_port, metrics_port: of the jobs `drain`, `web` and `exporter`.
        mail_url, airflow_url: page and API; None without Airflow.
        sinks: files with the addresses of servers that keep views, by kind; each runs once a view names it.
    """

    pid: int
    kafka_port: int
    smtp_port: int
    drain_port: int
    web_port: int
    metrics_port: int
    mail_url: str
    airflow_url: str | None = None
    sinks: dict[str, Path] = field(default_factory=dict)


def announce(state: Path, running: Running) -> None:
    """Write what the settings and `read_running` read into the state folder; raises OSError if that is not writable."""
    settings = (
        f'[kafka]\nbootstrap_servers = "{LOOPBACK}:{running.kafka_port}"\n\n'
        f'[smtp]\nhost = "{LOOPBACK}"\nport = {running.smtp_port}\n\n'
        f"[drain]\nport = {running.drain_port}\n\n[web]\nport = {running.web_port}\n\n"
        f"[metrics]\nport = {running.metrics_port}\n\n"
        "[views]\n" + "".join(f"{kind}_file = {json.dumps(str(path))}\n" for kind, path in running.sinks.items())
    )
    state_file.write(state / _ABOUT_FILE, Running, running)
    write_whole(state / RUNNING_FILE, settings)


def withdraw(state: Path) -> None:
    """Take back what a stack announced that has ended."""
    for name in (RUNNING_FILE, _ABOUT_FILE):
        (state / name).unlink(missing_ok=True)


def read_running(state: Path) -> Running | None:
    """The stack that runs on this state folder, as far as it announced itself; None when there is none."""
    return state_file.read(state / _ABOUT_FILE, Running, None)
