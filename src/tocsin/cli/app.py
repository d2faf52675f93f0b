"""The command `tocsin`: its verbs, and the one place that turns errors into output and exit codes.

It leaves with OK, FAILED or MISCONFIGURED of `ExitCode`, or with 130 when it was interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer

from tocsin.cli import demo_command
from tocsin.cli.data import (
    history_command,
    new_command,
    packages_command,
    quality_command,
    quarantine_command,
    replay_command,
    send_command,
    view_command,
)
from tocsin.cli.detectors import (
    backfill_command,
    check_command,
    detectors_command,
    evaluate_command,
    explain_command,
    model_command,
    parity_command,
    run_command,
    test_command,
)
from tocsin.cli.operate import (
    alerts_command,
    dev_command,
    plan_command,
    status_command,
)
from tocsin.cli.output import note
from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.platform import private
from tocsin.platform.process_exit import ExitCode

app = typer.Typer(
    name="tocsin",
    help="Run anomaly detectors, one Python file each, on streams.",
    epilog="Exit codes: 0 all well; 1 a problem, or a retry may help; 2 the call, a file or a setting is wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_VERBS: dict[str, dict[str, Any]] = {
    "Begin": {
        "demo": demo_command.demo,
        "dev": dev_command.app,
        "new": new_command.new,
        "doctor": dev_command.doctor,
        "packages": packages_command.packages,
    },
    "Write and try detectors": {
        "check": check_command.check,
        "test": test_command.test,
        "run": run_command.run,
        "explain": explain_command.explain,
        "evaluate": evaluate_command.evaluate,
        "model": model_command.app,
    },
    "Results": {
        "detectors": detectors_command.detectors,
        "findings": detectors_command.findings,
        "alerts": alerts_command.app,
        "view": view_command.view,
        "rebuild": view_command.rebuild,
        "web": dev_command.web,
    },
    "Events and history": {
        "send": send_command.send,
        "replay": replay_command.replay,
        "quarantine": quarantine_command.quarantine,
        "history": history_command.app,
        "quality": quality_command.quality,
        "backfill": backfill_command.backfill,
        "parity": parity_command.parity,
        "table": view_command.tables,
    },
    "Operate": {
        "status": status_command.status,
        "plan": plan_command.plan,
        "skip-backlog": detectors_command.skip_backlog,
        "topics": dev_command.topics,
    },
}
for _panel, _verbs in _VERBS.items():
    for _name, _verb in _verbs.items():
        if isinstance(_verb, typer.Typer):
            app.add_typer(_verb, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_verb)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tocsin {installed_version('tocsin')}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version.")]


@app.callback()
def _root(version: _Version = False) -> None:
    os.umask(private.UMASK)
    import structlog

    if not structlog.is_configured():
        # Standard output is for what was asked: with --json, data alone. The stream is looked up at each line, as it is
        # then: a test replaces it.
        *processors, renderer = structlog.get_config()["processors"]
        structlog.configure(
            processors=[*processors, _without_traceback, renderer],
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        )


def _without_traceback(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event.get("exc_info") and not os.environ.get("TOCSIN_DEBUG"):
        error = event.pop("exc_info")
        event.setdefault("error", repr(error if isinstance(error, BaseException) else sys.exc_info()[1]))
    return event


def main() -> None:
    """Run the command and leave with its exit code; a traceback is shown only when TOCSIN_DEBUG is set."""
    try:
        app(prog_name="tocsin")
    except Exception as error:
        if os.environ.get("TOCSIN_DEBUG"):
            raise
        sys.exit(tell(error))


def tell(error: Exception) -> int:
    """Write `error` to standard error for the person who called; returns the exit code."""
    if isinstance(error, ConfigError):
        faults = len(error.faults)
        note(str(error), style="red")
        if faults > 1:
            note(f"{faults} faults; fix them and run this again")
        return ExitCode.MISCONFIGURED
    if isinstance(error, TocsinError):
        note(str(error), style="red")
        return ExitCode.FAILED
    note(f"unexpected {type(error).__name__}: {error}", style="red")
    note("this is a bug in Tocsin; TOCSIN_DEBUG=1 shows the traceback")
    return ExitCode.FAILED
