"""`tocsin topics`: makes the topics of the project on a Kafka that is not the embedded one."""

from __future__ import annotations

from tocsin.cli.output import counted, line


def topics() -> None:
    """Create the topics that the sources of this project need; harmless when they exist.

    `tocsin dev up` does this by itself. Nothing is ever deleted or reconfigured: what differs is told.
    """
    from tocsin.kafka.topics import ensure_topics, wanted_topics
    from tocsin.project.catalog import read_catalog
    from tocsin.project.settings import load_settings

    settings = load_settings()
    catalog = read_catalog(settings.project)
    report = ensure_topics(settings, catalog)
    for name in report.created:
        line(f"created {name}")
    for sentence in report.grown:
        line(sentence)
    for sentence in report.differences:
        line(sentence, style="yellow")
    line(f"{counted(len(wanted_topics(settings, catalog)), 'topic')} at {settings.kafka.bootstrap_servers}")
