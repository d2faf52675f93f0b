"""`tocsin dev`: the embedded stack on this machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, table
from tocsin.cli.project import load_project, load_settings
from tocsin.declare.model.sizes import printable
from tocsin.platform.process_exit import on_signals
from tocsin.supervise.runners.log_files import tail

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
    from tocsin.dev import control

    line("stopped" if control.down(load_settings()) else "no stack runs here")


@app.command("logs")
def logs(
    component: Annotated[str, typer.Argument(help="kafka, mail, launcher, or a job such as ingest:logins.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Show this many of the last lines.")] = 50,
) -> None:
    """Show the log of one component."""
    from tocsin.dev import control

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


def doctor(json: options.Json = False) -> None:
    """Check Java, archives, disk, ports, Kafka, mail server and alerts DB, and say what to do.

    Changes nothing. Exit code 1 when there is a problem, not for warnings.
    """
    from tocsin.dev.diagnosis import diagnose
    from tocsin.supervise.job_status import Severity

    found = list(diagnose())
    if json:
        as_json(found)
    else:
        table(("", "WHAT", "FOUND"), ((each.standing, each.name, each.what) for each in found), empty="")
        for diagnosis in found:
            if diagnosis.advice:
                line(f"\n{diagnosis.name}: {diagnosis.what}\n  -> {printable(diagnosis.advice)}", style="yellow")
    if any(diagnosis.standing is Severity.PROBLEM for diagnosis in found):
        raise typer.Exit(1)


def topics() -> None:
    """Create the topics that the sources of this project need; harmless when they exist.

    `tocsin dev up` does this too. Nothing is ever deleted or reconfigured: differences are listed.
    """
    from tocsin.platform.kafka.topics import ensure_topics, wanted_topics

    settings, catalog = load_project()
    operator = settings.kafka.for_role("operator")
    report = ensure_topics(settings.model_copy(update={"kafka": operator}), catalog)
    for name in report.created:
        line(f"created {name}")
    for sentence in report.grown:
        line(sentence)
    for sentence in report.differences:
        line(sentence, style="yellow")
    line(f"{counted(len(wanted_topics(settings, catalog)), 'topic')} at {settings.kafka.bootstrap_servers}")


def web(
    hash_password: Annotated[
        bool, typer.Option("--hash-password", help="Ask for a password, and show its hash for `web.users` instead.")
    ] = False,
) -> None:
    """Show the address of the pages, and who may log in."""
    if hash_password:
        from tocsin.web import passwords

        line(passwords.hash_password(typer.prompt("Password", hide_input=True, confirmation_prompt=True)))
        return
    from tocsin.dev.servers.ports import accepts
    from tocsin.web.passwords import FIRST_USER, first_password_file

    settings = load_settings()
    if not accepts(settings.web.port, settings.web.local_host):
        what = f"nothing serves the pages on port {settings.web.port}"
        note(f"{what}; start it: tocsin dev up, or python -m tocsin.job web")
    line(settings.local_web_address)
    names = ", ".join(f"{name} ({user.role})" for name, user in settings.web.users.items())
    if settings.web.oidc:
        names = ", ".join(filter(None, (names, f"users of {settings.web.oidc.issuer}")))
    if file := first_password_file(settings):
        names = f"{FIRST_USER}, with the password in {file}"
    line(f"log in as {names}")
