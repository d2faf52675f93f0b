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
app.command("demo")(demo_command.demo)
app.add_typer(dev_command.app, name="dev")
app.command("new")(new_command.new)
app.command("send")(send_command.send)
app.command("replay")(replay_command.replay)
app.command("status")(status_command.status)
app.command("detectors")(detectors_command.detectors)
app.command("findings")(detectors_command.findings)
app.add_typer(alerts_command.app, name="alerts")
app.command("quarantine")(quarantine_command.quarantine)
app.command("view")(view_command.view)
app.command("web")(dev_command.web)
app.command("rebuild")(view_command.rebuild)
app.command("table")(view_command.tables)
app.add_typer(model_command.app, name="model")
app.add_typer(history_command.app, name="history")
app.command("quality")(quality_command.quality)
app.command("test")(test_command.test)
app.command("run")(run_command.run)
app.command("backfill")(backfill_command.backfill)
app.command("evaluate")(evaluate_command.evaluate)
app.command("parity")(parity_command.parity)
app.command("explain")(explain_command.explain)
app.command("skip-backlog")(detectors_command.skip_backlog)
app.command("packages")(packages_command.packages)
app.command("check")(check_command.check)
app.command("plan")(plan_command.plan)
app.command("topics")(dev_command.topics)
app.command("doctor")(dev_command.doctor)


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
