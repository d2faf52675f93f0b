"""Ports on loopback: free ones, and who holds the others."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import psutil

from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.settings import Settings

LOOPBACK = "127.0.0.1"
_LOCAL = (LOOPBACK, "localhost")
# Below the range that systems number outgoing connections from, so that none of these takes the port meanwhile.
_CHOICE = range(20_000, 32_000)
_TRIES = 200
# Not those that Debian's services take as soon as they are installed.
_SINKS = {"postgres": 8432, "redis": 8433, "influx": 8434}


@dataclass(frozen=True)
class Ports:
    """The ports of a stack's servers, all on loopback; `controller` is Kafka's own.

    `drain`, `web`, `metrics` and `sinks` have theirs whether they run or not; `airflow` is None when not in the stack.
    """

    kafka: int
    controller: int
    smtp: int
    mail_page: int
    drain: int
    web: int
    metrics: int
    airflow: int | None = None
    sinks: Mapping[str, int] = field(default_factory=dict)


def choose(
    settings: Settings, *, free: bool, mail_page: int, airflow: bool = False, needed: Collection[str] = ()
) -> Ports:
    """Choose the ports of a stack: free ones, or those that the settings lead to, and `mail_page`.

    `needed` are the servers of views that are about to start.

    Raises:
        ConfigError: the settings lead to Kafka or SMTP servers elsewhere, or a port is in use.
    """
    controller, kafka, smtp, page, drain, web, metrics, other, *sinks = free_ports(8 + len(_SINKS))
    if free:
        others = dict(zip(_SINKS, sinks, strict=True))
        return Ports(kafka, controller, smtp, page, drain, web, metrics, other if airflow else None, others)
    host, _, port = settings.kafka.bootstrap_servers.rpartition(":")
    faults = []
    if host not in _LOCAL or not port.isdigit() or settings.kafka.security_protocol != "PLAINTEXT":
        what = f"{settings.kafka.bootstrap_servers} is not a plain local server, so `tocsin dev up` cannot start it"
        faults.append(Fault("settings", what, key="kafka.bootstrap_servers"))
    if settings.smtp.host not in _LOCAL:
        what = f"{settings.smtp.host} is not this machine, so `tocsin dev up` cannot start it"
        faults.append(Fault("settings", what, key="smtp.host"))
    if faults:
        raise ConfigError(faults)
    jobs = settings.drain.port, settings.web.port, settings.metrics.port
    own = settings.airflow.port if airflow else None
    ports = Ports(int(port), controller, settings.smtp.port, mail_page, *jobs, own, _SINKS)
    wanted = {"Kafka": ports.kafka, "mail sink (SMTP)": ports.smtp, "mail sink (page)": ports.mail_page}
    wanted |= {f"{kind} of views": port for kind, port in _SINKS.items() if kind in needed}
    require_free(wanted | ({"Airflow": ports.airflow} if ports.airflow is not None else {}))
    return ports


def free_ports(count: int) -> list[int]:
    """Find `count` different ports on which nothing listens now; raises ConfigError when hardly any is free."""
    found: list[int] = []
    for port in random.sample(_CHOICE, _TRIES):
        if len(found) < count and _is_free(port):
            found.append(port)
    if len(found) < count:
        raise ConfigError.one("ports", f"none of {_TRIES} tried between {_CHOICE.start} and {_CHOICE.stop} is free")
    return found


def require_free(ports: Mapping[str, int]) -> None:
    """Raise a ConfigError that names each of `ports` that is in use, what needs it (its key), and who holds it."""
    faults = [
        Fault(what, f"port {port} is in use by {owner_of(port)}; choose another, or let --free-ports choose")
        for what, port in ports.items()
        if not _is_free(port)
    ]
    if faults:
        raise ConfigError(faults)


def owner_of(port: int) -> str:
    """The process that listens on `port`, in words."""
    for pid in _listeners(port):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = " ".join(psutil.Process(pid).cmdline())
            return f"process {pid} ({command if len(command) <= 120 else command[:117] + '...'})"
    return "a process that this user may not see"


def accepts(port: int, host: str = LOOPBACK) -> bool:
    """Return whether something accepts connections on `port` of `host`."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def _listeners(port: int) -> Iterator[int]:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:  # macOS shows them to root alone
        return
    for connection in connections:
        if (
            connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == port
            and connection.pid
        ):
            yield connection.pid


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
