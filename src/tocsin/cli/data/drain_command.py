"""`tocsin drain`: send lines to the drain, as Heroku does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Annotated

import typer

from tocsin.cli.data.send_command import limit_rate, open_lines, whole_lines
from tocsin.cli.output import bar, counted, line
from tocsin.platform.process_exit import on_signals

_File = Annotated[str, typer.Argument(help="A file with one line each; - for standard input.")]
_Source = Annotated[str, typer.Option(help="Whose lines they are, and the user name.")]
_Url = Annotated[str | None, typer.Option(help="Of the drain; that of the settings when left out.")]
_Repeat = Annotated[float, typer.Option(min=0, max=1, help="Share of batches that are sent twice.")]
_Rate = Annotated[float | None, typer.Option(min=0, help="Lines per second; as fast as it goes when left out.")]


def drain(file: _File, source: _Source = "router", url: _Url = None, repeat: _Repeat = 0.0, rate: _Rate = None) -> None:
    """Send lines to the job `drain` as Heroku does: in batches, each again until it is taken.

    A line without the header of a syslog line gets one of Heroku's router, with the time of now. Exit code 1 when the
    drain takes nothing for a minute, 2 when it refuses.
    """
    from tocsin.declare.model.errors import ConfigError, Fault, nearest
    from tocsin.declare.settings import load_settings
    from tocsin.ingest.log_drain.credentials import read_passwords
    from tocsin.ingest.log_drain.sender import BatchSender

    settings = load_settings()
    credentials = settings.drain_credentials
    if credentials is None:
        raise ConfigError.one("tocsin.toml", "names no file that says who may send", key="drain.credentials_file")
    passwords = read_passwords(credentials)
    if source not in passwords:
        raise ConfigError([Fault(str(credentials), f"has no source '{source}'", nearest=nearest(source, passwords))])
    scheme = "https" if settings.drain.certificate_file else "http"
    address = url or f"{scheme}://{settings.drain.host}:{settings.drain.port}/logs"
    sender = BatchSender(address, source, passwords[source], repeat=repeat)
    stop = threading.Event()
    on_signals(stop, interactive=True)
    with open_lines(file) as (stream, _), bar("sending", None) as advance:
        raws: Iterator[bytes] = (raw.rstrip(b"\r\n") for raw in limit_rate(whole_lines(stream), rate or 0.0, stop))
        sender.send((raw for raw in raws if raw), advance)
    sent = sender.sent
    again = f"batches sent twice: {sent.repeats:,}, sent again for lack of an answer: {sent.retries:,}"
    line(f"sent {counted(sent.lines, 'line')} in {sent.batches:,} batches to {address} ({again})")
