"""List what each role may do on Kafka: its topics by name, its consumer groups by how they begin. Pure.

A role is a kind of job, with what all its jobs need together, or `operator`: supervisor, batches and commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.kafka.topics import wanted_topics
from tocsin.model.names import (
    COMPUTE,
    DETECTOR,
    DRAIN,
    EXPORTER,
    FLOW,
    INDEXER,
    INGEST,
    NOTIFIER,
    TABLE,
    VIEW,
    WEB,
    Names,
)
from tocsin.project.blocks.kafka_login import OPERATOR
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings

TOPIC, GROUP = "topic", "group"
READ, WRITE, DELETE, DESCRIBE, ALL = "Read", "Write", "Delete", "Describe", "All"
_READERS = {FLOW: ("exact:",), DETECTOR: ("exact:",)}
_ALONE = (INDEXER, NOTIFIER, DRAIN, WEB, EXPORTER)


@dataclass(frozen=True, order=True)
class Right:
    """One operation on a topic or a consumer group.

    Attributes:
        kind: TOPIC or GROUP.
        name: of it, or how the names of all begin that are meant.
        operation: in Kafka's word, such as "Read".
        is_beginning: whether the name is a beginning.
    """

    kind: str
    name: str
    operation: str
    is_beginning: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}{'*' if self.is_beginning else ''}"


def rights_of(role: str, settings: Settings, catalog: Catalog) -> frozenset[Right]:
    """List what jobs of `role` need for what `catalog` declares."""
    names = settings.names
    if role == OPERATOR:
        groups = Right(GROUP, names.group(""), ALL, is_beginning=True)
        topics = {Right(TOPIC, name, ALL) for name in wanted_topics(settings, catalog)}
        builds = {Right(TOPIC, names.rebuild(view, ""), ALL, is_beginning=True) for view in catalog.views}
        return frozenset({groups} | topics | builds)
    reads, writes = _topics(names, catalog)[role]
    metrics = names.job_metrics
    found = {Right(TOPIC, name, READ) for name in (*reads, metrics)}
    found |= {Right(TOPIC, name, WRITE) for name in (*writes, metrics)}
    if role == COMPUTE:
        past = (names.rebuild(view, "") for view in catalog.views)
        found |= {Right(TOPIC, one, deed, is_beginning=True) for one in past for deed in (READ, DELETE)}
    found |= {Right(GROUP, names.group(one), READ, is_beginning=True) for one in _READERS.get(role, ())}
    # A name alone is that of its only job; a job with a name of its own has it behind a colon.
    found.add(Right(GROUP, names.group(role if role in _ALONE else f"{role}:"), READ, is_beginning=role not in _ALONE))
    # The age of what its feeders have not read is looked up in their name; only they commit.
    feeders = (INGEST, FLOW, DETECTOR, INDEXER) if role in (FLOW, DETECTOR, COMPUTE) else ()
    found |= {Right(GROUP, names.group(one), DESCRIBE, is_beginning=True) for one in feeders}
    return frozenset(found | {Right(GROUP, names.group("reports"), READ)})


def _topics(names: Names, catalog: Catalog) -> dict[str, tuple[set[str], set[str]]]:
    """Name the topics that each role reads, and those that it writes, by role."""
    recorded = [name for name, source in catalog.sources.items() if not source.is_derived]
    raw, quarantine = {names.raw(one) for one in recorded}, {names.quarantine(one) for one in recorded}
    parsed, of_findings = {names.events(one) for one in recorded}, {names.events(one) for one in catalog.read_findings}
    views, found = {names.view(one) for one in catalog.views}, {names.findings}
    followed = {spec.follows(names) for spec in catalog.kept_tables.values()}
    detectors, flows = catalog.detectors.values(), catalog.flows.values()
    before = raw | {names.events(one) for one in _all(spec.sources for spec in flows)}
    made = {names.events(spec.to) for spec in flows}
    seen = {names.events(one) for one in _all(spec.sources for spec in detectors)}
    computed = {names.events(one) for one in _all(spec.sources for spec in catalog.views.values())}
    return {
        INGEST: (raw | parsed, parsed | quarantine),
        TABLE: (followed, set()),
        FLOW: (before | made, made),
        DETECTOR: (before | seen | found, found),
        COMPUTE: (before | computed | found, views),
        VIEW: (views, views),
        INDEXER: (found, of_findings),
        NOTIFIER: (set(), set()),
        DRAIN: (set(), raw),
        WEB: (set(), set()),
        EXPORTER: (set(), set()),
    }


def _all(lists: Iterable[Iterable[str]]) -> set[str]:
    return {name for some in lists for name in some}
