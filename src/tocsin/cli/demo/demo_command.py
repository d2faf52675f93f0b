"""`tocsin demo`: show every step from a log line to a mail, on a stack of its own."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.output import line
from tocsin.runtime.process_exit import on_signals

_State = Annotated[Path, typer.Option("--state", help="State folder of the demo; emptied first.")]
_Exit = Annotated[bool, typer.Option("--exit-when-done", help="Check that everything happens as announced, then exit.")]


def demo(state: _State = Path(".tocsin/demo"), exit_when_done: _Exit = False) -> None:
    """Start a stack, send logins with two bursts of failures, and show the mails about them.

    Uses free ports on loopback and its own state folder, so it disturbs nothing. Runs until Ctrl-C. Exit
    code 1 when what it announced does not happen within three minutes.
    """
    from tocsin.cli.demo.demo_run import DemoRun
    from tocsin.dev import launcher
    from tocsin.dev.startup_progress import progress

    # Also for the commands that people run in other terminals: the text of the demo names this variable.
    os.environ["TOCSIN_STATE"] = str(state.resolve())
    line("Tocsin's demo: a real Kafka, Spark jobs, a mail sink, and an attacker who guesses passwords.")
    stop = threading.Event()
    on_signals(stop, interactive=True)
    run = DemoRun(progress(), stop, exit_when_done=exit_when_done)
    run.start()
    try:
        launcher.up(None, launcher.Options(reset=True, free_ports=True), run, stop)
    finally:
        stop.set()
        run.join()
    if run.faults:
        raise typer.Exit(1)
