"""`tocsin doctor` and `tocsin topics`: what is wrong with an installation, and the topics that it needs."""

from __future__ import annotations

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, table
from tocsin.declare.model.sizes import printable


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
    from tocsin.declare.catalog import load_project
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
