"""`tocsin demo`: show every step from a log line to a mail, or to a view, on a stack of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.output import line
from tocsin.platform.process_exit import on_signals

if TYPE_CHECKING:
    from tocsin.cli.demo.companion import Companion

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
    from tocsin.dev import launcher

    # Also for the commands that people run in other terminals: the text of the demo names this variable.
    os.environ["TOCSIN_STATE"] = str(state.resolve())
    stop = threading.Event()
    with ExitStack() as cleaning:
        run = _logins(stop, exit_when_done) if example is None else _example(example, stop, exit_when_done, cleaning)
        on_signals(stop, interactive=True)
        run.start()
        try:
            launcher.up(None, launcher.Options(reset=True, free_ports=True), run, stop)
        finally:
            stop.set()
            run.join()
    if run.faults:
        raise typer.Exit(1)


def _logins(stop: threading.Event, exit_when_done: bool) -> Companion:
    from tocsin.cli.demo.demo_run import DemoRun
    from tocsin.dev.startup_progress import progress

    line("Tocsin's demo: a real Kafka, Spark jobs, a mail sink, and an attacker who guesses passwords.")
    return DemoRun(progress(), stop, exit_when_done=exit_when_done)


def _example(name: str, stop: threading.Event, exit_when_done: bool, cleaning: ExitStack) -> Companion:
    from tocsin.cli.demo.example_run import ExampleRun
    from tocsin.cli.demo.example_traffic import EXAMPLES
    from tocsin.declare.model.errors import ConfigError, Fault, nearest
    from tocsin.dev.startup_progress import progress
    from tocsin.setup.paths import here

    if name not in EXAMPLES:
        what = f"no example '{name}' (there are: {', '.join(EXAMPLES)})"
        raise ConfigError([Fault("--example", what, nearest=nearest(name, EXAMPLES))])
    folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-example-")))
    project = shutil.copytree(here().root / "examples" / name, folder / name)
    os.environ["TOCSIN_PROJECT"] = str(project)
    line(f"Tocsin's example {name}: a real Kafka, Spark jobs, and a view that is kept up to date.")
    return ExampleRun(EXAMPLES[name](), progress(), stop, exit_when_done=exit_when_done)
