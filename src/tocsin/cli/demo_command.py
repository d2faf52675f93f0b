"""`tocsin demo`: show every step from a log line to a mail, or to a view, on a stack of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.output import line
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.platform.process_exit import on_signals
from tocsin.setup.paths import here

_State = Annotated[Path, typer.Option("--state", help="State folder of the demo; emptied first.")]
_Example = Annotated[
    str | None, typer.Option("--example", metavar="NAME", help="Show a view: words, routes, inventory or instances.")
]
_Exit = Annotated[bool, typer.Option("--exit-when-done", help="Check that everything happens as announced, then exit.")]


def demo(state: _State = Path(".tocsin/demo"), example: _Example = None, exit_when_done: _Exit = False) -> None:
    """Start a stack, send logins with two bursts of failures, and show the mails about them.

    With `--example` it runs a copy of that project of examples/ instead, sends lines to it, and shows its view on a
    page with the numbers moving.

    Uses free ports on loopback and its own state folder, so it disturbs nothing. Runs until Ctrl-C. Exit
    code 1 when what it announced does not happen within three minutes.
    """
    from tocsin.cli.demo_run import EXAMPLES, GATHER_SECONDS, Demonstration, ExampleDemo, LoginDemo
    from tocsin.dev import launcher
    from tocsin.dev.startup_progress import progress

    # Also for the commands that people run in other terminals: the text of the demo names this variable.
    os.environ["TOCSIN_STATE"] = str(state.resolve())
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="tocsin-example-") as folder:
        if example is None:
            line("Tocsin's demo: a real Kafka, Spark jobs, a mail sink, and an attacker who guesses passwords.")
            os.environ["TOCSIN_ALERTS__GROUP_INTERVAL"] = f"{GATHER_SECONDS} seconds"
            run: Demonstration = LoginDemo(progress(), stop, exit_when_done=exit_when_done)
        elif example in EXAMPLES:
            project = shutil.copytree(here().root / "examples" / example, Path(folder) / example)
            os.environ["TOCSIN_PROJECT"] = str(project)
            line(f"Tocsin's example {example}: a real Kafka, Spark jobs, and a view that is kept up to date.")
            run = ExampleDemo(example, progress(), stop, exit_when_done=exit_when_done)
        else:
            what = f"no example '{example}' (there are: {', '.join(EXAMPLES)})"
            raise ConfigError([Fault("--example", what, nearest=nearest(example, EXAMPLES))])
        on_signals(stop, interactive=True)
        run.start()
        try:
            launcher.up(None, launcher.Options(reset=True, free_ports=True), run, stop)
        finally:
            stop.set()
            run.join()
    if run.faults:
        raise typer.Exit(1)
