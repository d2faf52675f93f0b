"""The kinds of jobs. A new kind is one entry in `KINDS`, and the room with its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.model.errors import ConfigError
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
    JobName,
)
from tocsin.project import keywords
from tocsin.project.catalog import Catalog, Declared
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.job_states import UNREADABLE, Desired
from tocsin.supervision.planning import desired_inputs
from tocsin.supervision.planning.code_identity import code_identity
from tocsin.supervision.planning.pod_resources import with_pod

_SPARK = ("kafka", "storage", "quality", "tables", "sparkjob", "ingest")
_ALERTS = ("kafka", "quality", "storage", "history", "backfill", "alerts")


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """One kind of job.

    Attributes:
        word: the kind in the names of its jobs.
        rooms: rooms of `tocsin`, or folders and files in them, with the code that its jobs run, besides what every job
            runs.
        desired: the readable jobs that should run, by name, given the hash of the code. A job without a name of its own
            is called "".
        declared: what is declared of each job by a file that can be read; None for a job that the platform needs.
        folder, suffix: of those files.
        title: one line about a job without a file.
        wanted: whether the settings ask for such jobs.
        addresses: blocks of the settings whose addresses, which may hold passwords, its jobs are told. All jobs are
            told those of Kafka.
    """

    word: str
    rooms: tuple[str, ...]
    desired: Callable[[Catalog, Settings, str], Mapping[str, Desired]]
    declared: Callable[[Catalog], Mapping[str, Declared]] | None = None
    folder: str = ""
    suffix: str = ""
    title: str = ""
    wanted: Callable[[Settings], bool] = lambda settings: True
    addresses: frozenset[str] = frozenset()

    def job(self, name: str) -> str:
        """Name one of its jobs."""
        return str(JobName(self.word, name))

    def broken(self, catalog: Catalog) -> dict[str, ConfigError]:
        """Return the faults of the files that cannot be read, by the name of the job that each declares."""
        prefix = f"{self.folder}/"
        return {place.removeprefix(prefix): e for place, e in catalog.broken.items() if place.startswith(prefix)}

    def names(self, catalog: Catalog) -> list[str]:
        """List all its jobs, those in a stage that does not run and those with a broken file included."""
        return [""] if self.declared is None else sorted([*self.declared(catalog), *self.broken(catalog)])


def broken_jobs(catalog: Catalog) -> dict[str, ConfigError]:
    """Return the faults of the files that cannot be read, by the job that each declares."""
    return {kind.job(name): error for kind in KINDS.values() for name, error in kind.broken(catalog).items()}


KINDS = {
    kind.word: kind
    for kind in (
        JobKind(
            word=INGEST,
            rooms=_SPARK,
            desired=desired_inputs.ingests,
            declared=desired_inputs.ingested,
            folder="sources",
            suffix=".toml",
        ),
        JobKind(
            word=TABLE,
            rooms=("storage", "kafka", "tables"),
            desired=desired_inputs.tables,
            declared=lambda catalog: catalog.kept_tables,
            folder="tables",
            suffix=".toml",
        ),
        JobKind(
            word=FLOW,
            rooms=(*_SPARK, "flows"),
            desired=desired_inputs.queries(
                keywords.FLOW, lambda catalog: catalog.flows, desired_inputs.written_source, hands_over=True
            ),
            declared=lambda catalog: catalog.flows,
            folder="flows",
            suffix=".py",
        ),
        JobKind(
            word=DETECTOR,
            rooms=(*_SPARK, "detect"),
            desired=desired_inputs.queries(keywords.DETECTOR, lambda catalog: catalog.detectors, hands_over=True),
            declared=lambda catalog: catalog.detectors,
            folder="detectors",
            suffix=".py",
        ),
        JobKind(
            word=COMPUTE,
            rooms=(*_SPARK, "views/spark", "views/rebuild"),
            desired=desired_inputs.queries(
                keywords.VIEW, lambda catalog: catalog.views, desired_inputs.computed_window
            ),
            declared=lambda catalog: catalog.views,
            folder="views",
            suffix=".py",
        ),
        JobKind(
            word=VIEW,
            rooms=("kafka", "storage", "views"),
            desired=desired_inputs.views,
            declared=lambda catalog: catalog.views,
            folder="views",
            suffix=".py",
            addresses=frozenset({"views"}),
        ),
        JobKind(
            word=INDEXER,
            rooms=_ALERTS,
            desired=desired_inputs.indexer,
            title="Merges findings into alerts",
            addresses=frozenset({"alerts", "history"}),
        ),
        JobKind(
            word=NOTIFIER,
            rooms=_ALERTS,
            desired=desired_inputs.notifier,
            title="Sends what is due",
            addresses=frozenset({"alerts", "history"}),
        ),
        JobKind(
            word=DRAIN,
            rooms=("kafka", "quality", "ingest", "log_drain"),
            desired=desired_inputs.drain,
            title="Takes lines over HTTP",
            wanted=lambda settings: settings.drain.credentials_file is not None,
        ),
        JobKind(
            word=WEB,
            rooms=("kafka", "storage", "views"),
            desired=desired_inputs.web,
            title="Answers questions about views",
            wanted=lambda settings: any((settings.project / "views").glob("*.py")),
        ),
        JobKind(
            word=EXPORTER,
            rooms=(*_ALERTS, "views", "detect", "tables", "supervision", "dev", "web", "metrics"),
            desired=desired_inputs.exporter,
            title="Answers Prometheus",
            wanted=lambda settings: settings.metrics.enabled,
            addresses=frozenset({"alerts", "history"}),
        ),
    )
}
"""By their words, in the order of their start."""


# Rooms with code that every job runs.
_CORE = ("model", "project", "runtime", "job.py")


def desired_jobs(catalog: Catalog, settings: Settings) -> dict[str, Desired]:
    """Return every job that should run, in the order of its start.

    One ingest for each source with records of its own, one job for each table, and for each flow, detector and view in
    a stage that runs, the indexer, the notifier, and the log drain where somebody may send. A job whose file cannot be
    read now is unreadable: left alone until it can.
    """
    jobs: dict[str, Desired] = {}
    for kind in KINDS.values():
        # With the login that its jobs are started with: that of another kind is none of their inputs.
        own = settings.model_copy(update={"kafka": settings.kafka.for_role(kind.word)})
        desired = kind.desired(catalog, own, _code(kind.rooms, settings.state))
        jobs |= {kind.job(name): with_pod(one, settings, kind.word) for name, one in desired.items()}
        jobs |= {kind.job(name): UNREADABLE for name in kind.broken(catalog)}
    return jobs


def forget_code() -> None:
    """Read the platform's code again at the next call: for a process that lives longer than one deployment."""
    _code.cache_clear()


@functools.cache
def _code(rooms: tuple[str, ...], state: Path) -> str:
    """Hash the platform's code of one kind of job, read once in the life of this process."""
    root = here().root
    places = [root / "src" / "tocsin" / room for room in (*_CORE, *rooms)]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    return code_identity(files, root, state)
