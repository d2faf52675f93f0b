"""`tocsin dev`: the embedded stack on this machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.output import line, note
from tocsin.declare.model.sizes import printable
from tocsin.platform.process_exit import on_signals

app = typer.Typer(help="Run Kafka, a mail sink and all jobs on this machine.", no_args_is_help=True)

_FOLLOW_SECONDS = 0.25


@app.command("up")
def up(
    reset: Annotated[
        bool, typer.Option("--reset", help="Remove all data, checkpoints, alerts and logs first.")
    ] = False,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Choose free ports instead of the configured ones.")
    ] = False,
    mail_port: Annotated[
        int, typer.Option("--mail-port", min=1, max=65535, help="Port of the mail sink's page.")
    ] = 1080,
    airflow: Annotated[
        bool, typer.Option("--airflow", help="Also start Airflow, which then supervises the jobs.")
    ] = False,
) -> None:
    """Start everything, say when it is ready, keep it running; Ctrl-C stops everything."""
    from tocsin.dev import launcher
    from tocsin.dev.startup_progress import progress

    stop = threading.Event()
    on_signals(stop, interactive=True)
    options = launcher.Options(reset=reset, free_ports=free_ports, mail_page=mail_port, airflow=airflow)
    launcher.up(None, options, progress(), stop)


@app.command("down")
def down() -> None:
    """Stop what `tocsin dev up` runs in another terminal, and wait until it is gone."""
    from tocsin.declare.settings import load_settings
    from tocsin.dev import control

    line("stopped" if control.down(load_settings()) else "no stack runs here")


@app.command("logs")
def logs(
    component: Annotated[str, typer.Argument(help="kafka, mail, launcher, or a job such as ingest:logins.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Show this many of the last lines.")] = 50,
) -> None:
    """Show the log of one component."""
    from tocsin.declare.settings import load_settings
    from tocsin.dev import control
    from tocsin.supervise.runners.log_files import tail

    path = Path(control.component_log(load_settings(), component))
    if not path.exists():
        note(f"{component} has written nothing yet ({path})")
    for text in tail(path, lines):
        typer.echo(printable(text))
    if follow:
        _follow(path)


def _follow(path: Path) -> None:
    position = path.stat().st_size if path.exists() else 0
    try:
        while True:
            size = path.stat().st_size if path.exists() else 0
            position = position if size >= position else 0
            if size > position:
                with path.open("rb") as file:
                    file.seek(position)
                    whole, end, _ = file.read().rpartition(b"\n")
                position += len(whole) + len(end)
                for text in whole.decode("utf-8", "replace").splitlines():
                    typer.echo(printable(text))
            time.sleep(_FOLLOW_SECONDS)
    except KeyboardInterrupt:
        return
