"""`tocsin doctor` and `tocsin topics`: what is wrong with an installation, and the topics that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, table
from tocsin.model.sizes import printable

if TYPE_CHECKING:
    from tocsin.project.catalog import Catalog
    from tocsin.project.setting_blocks import KafkaSettings
    from tocsin.project.settings import Settings


def doctor(json: options.Json = False) -> None:
    """Check Java, archives, disk, ports, Kafka, mail server and alerts DB, and say what to do.

    Changes nothing. Exit code 1 when there is a problem, not for warnings.
    """
    from tocsin.dev.diagnosis import diagnose
    from tocsin.supervision.health import Standing

    found = list(diagnose())
    if json:
        as_json(found)
    else:
        table(("", "WHAT", "FOUND"), ((one.standing, one.name, one.what) for one in found), empty="")
        for one in found:
            if one.advice:
                line(f"\n{one.name}: {one.what}\n  -> {printable(one.advice)}", style="yellow")
    if any(one.standing is Standing.PROBLEM for one in found):
        raise typer.Exit(1)


def topics(
    acls: Annotated[bool, typer.Option("--acls", help="Also write the rules (ACLs) that each login needs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the missing rules, as commands.")] = False,
    username: Annotated[str, typer.Option(help="Write the rules as this principal, which may alter the cluster.")] = "",
    password_file: Annotated[Path | None, typer.Option(help="File with its password.")] = None,
) -> None:
    """Create the topics that the sources of this project need; harmless when they exist.

    `tocsin dev up` does this too. Nothing is ever deleted or reconfigured: differences are listed.
    """
    from tocsin.kafka.topics import ensure_topics, wanted_topics
    from tocsin.model.errors import ConfigError
    from tocsin.project.catalog import load_project

    if bool(username) != (password_file is not None):
        raise ConfigError.one("--username", "goes together with --password-file")
    if (username or dry_run) and not acls:
        raise ConfigError.one("--username and --dry-run", "are about rules; add --acls")
    settings, catalog = load_project()
    writer = settings.kafka.for_role("operator")
    if username:
        writer = writer.model_copy(update={"sasl_username": username, "sasl_password_file": password_file})
    if acls:
        _rules(settings, catalog, writer, write=not dry_run)
    if dry_run:
        return
    report = ensure_topics(settings.model_copy(update={"kafka": writer}), catalog)
    for name in report.created:
        line(f"created {name}")
    for sentence in report.grown:
        line(sentence)
    for sentence in report.differences:
        line(sentence, style="yellow")
    line(f"{counted(len(wanted_topics(settings, catalog)), 'topic')} at {settings.kafka.bootstrap_servers}")


def _rules(settings: Settings, catalog: Catalog, writer: KafkaSettings, *, write: bool) -> None:
    """Write the missing rules, or print them as commands; list those that nothing needs."""
    from tocsin.kafka.access.access_rules import as_commands, ensure_rules, wanted_rules

    report = ensure_rules(settings, catalog, writer, write=write)
    for sentence in as_commands(report.missing, writer.bootstrap_servers) if not write else report.missing:
        line(str(sentence) if not write else f"added: {sentence}")
    for sentence in report.unneeded:
        line(f"not needed: {sentence}", style="yellow")
    if write:
        line(f"{counted(len(wanted_rules(settings, catalog)), 'rule')} at {writer.bootstrap_servers}")
