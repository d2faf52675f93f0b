"""The kinds of jobs. A new kind is one entry in `KINDS`, and the room with its code."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError
from tocsin.model.flow import FlowSpec
from tocsin.model.names import COMPUTE, DETECTOR, DRAIN, FLOW, INDEXER, INGEST, NOTIFIER, TABLE, VIEW, WEB, JobName
from tocsin.model.source import Source
from tocsin.model.view import ViewSpec
from tocsin.project.catalog import Catalog, Declared
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.job_states import UNREADABLE, Desired

# History and topics are looked after by others, people are for the mails.
_NOT_INGESTED = {"title", "owner", "history_days", "partitions", "silent_after"}
_DETECTED = {"name", "lateness", "columns"}
_NOT_JOINED = {"title", "owner", "keep", "max_rows"}
_SPARK = ("kafka", "quality", "tables", "sparkjob", "ingest")
_ALERTS = ("kafka", "quality", "history", "backfill", "alerts")


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """One kind of job.

    Attributes:
        word: the kind in the names of its jobs.
        program: what Python runs, a file of the project or a module. Its argument is the name of the job, or `word`.
        rooms: rooms of `tocsin`, or folders and files in them, with the code that its jobs run, besides what every job
            runs.
        desired: the readable jobs that should run, by name, given the hash of the code. A job without a name of its own
            is called "".
        declared: what is declared of each job by a file that can be read; None for a job that the platform needs.
        folder, suffix: of those files.
        title: one line about a job without a file.
        wanted: whether the settings ask for such jobs.
        uses_alerts_db: whether its jobs are told the address of the alerts DB, which may hold a password.
    """

    word: str
    program: str
    rooms: tuple[str, ...]
    desired: Callable[[Catalog, Settings, str], Mapping[str, Desired]]
    declared: Callable[[Catalog], Mapping[str, Declared]] | None = None
    folder: str = ""
    suffix: str = ""
    title: str = ""
    wanted: Callable[[Settings], bool] = lambda settings: True
    uses_alerts_db: bool = False

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


def _ingests(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    spark = _plain(settings.kafka), _plain(settings.spark)
    return {
        name: Desired(_spec(code, *spark, _plain(source, exclude=_NOT_INGESTED)), heavy=True)
        for name, source in _ingested(catalog).items()
    }


def _ingested(catalog: Catalog) -> dict[str, Source]:
    return {name: source for name, source in catalog.sources.items() if not source.is_derived}


def _tables(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    kafka = _plain(settings.kafka)
    return {name: Desired(_spec(code, kafka, _plain(spec))) for name, spec in catalog.tables.items()}


def _queries(
    declared: Callable[[Catalog], Mapping[str, FlowSpec | DetectorSpec | ViewSpec]],
    more: Callable[[Catalog, Any], str] = lambda catalog, spec: "",
    *,
    hands_over: bool = False,
) -> Callable[[Catalog, Settings, str], dict[str, Desired]]:
    """Desire a job for each file whose stage runs.

    It is replaced if its version changes, its source, the platform or `more`; what does not touch its results, such as
    owner and stage, replaces none.
    """

    def desired(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
        made, spark = {}, (_plain(settings.kafka), _plain(settings.spark))
        for name, spec in declared(catalog).items():
            if spec.stage.runs:
                reads = _plain(catalog.sources[spec.source], include=_DETECTED)
                joined = [_plain(catalog.tables[one], exclude=_NOT_JOINED) for one in spec.tables]
                hashed = _spec(code, *spark, reads, spec.version, more(catalog, spec), *joined)
                memory = None if isinstance(spec, FlowSpec) else spec.memory
                made[name] = Desired(hashed, heavy=True, memory_bytes=memory, hands_over=hands_over)
        return made

    return desired


def _written(catalog: Catalog, flow: FlowSpec) -> str:
    return _plain(catalog.sources[flow.to], exclude=_NOT_INGESTED)


def _drain(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Replace it too when the passwords are written anew: it reads them once."""
    credentials = settings.drain_credentials
    if credentials is None:
        return {}
    sources = [_plain(source) for source in catalog.sources.values()]
    written = str(credentials.stat().st_mtime_ns) if credentials.exists() else ""
    return {"": Desired(_spec(code, _plain(settings.kafka), _plain(settings.drain), written, *sources))}


def _views(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Replace the job when a view is kept elsewhere, or longer; what it computes is the business of another job."""
    shared = _plain(settings.kafka), _plain(settings.views)
    return {
        name: Desired(_spec(code, *shared, spec.sink, spec.table, *spec.key, *spec.total, str(spec.keep)))
        for name, spec in catalog.views.items()
        if spec.stage.runs
    }


def _web(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Serve REST while there are views; the server reads their files again when these change."""
    return {"": Desired(_spec(code, _plain(settings.kafka), _plain(settings.web)))} if catalog.views else {}


def _of_alerts(settings: Settings) -> tuple[str, ...]:
    return _plain(settings.kafka), _plain(settings.alerts)


def _spec(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _plain(model: BaseModel, include: set[str] | None = None, exclude: set[str] | None = None) -> str:
    """Write `model`, or these fields of it, as text that is the same in every process: sets in order."""
    return json.dumps(_sorted(model.model_dump(include=include, exclude=exclude)), sort_keys=True, default=str)


def _sorted(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _sorted(one) for key, one in value.items()}
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else value


KINDS = {
    kind.word: kind
    for kind in (
        JobKind(
            word=INGEST,
            program="spark_jobs/ingest.py",
            rooms=_SPARK,
            desired=_ingests,
            declared=_ingested,
            folder="sources",
            suffix=".toml",
        ),
        JobKind(
            word=TABLE,
            program="tocsin.tables",
            rooms=("kafka", "tables"),
            desired=_tables,
            declared=lambda catalog: catalog.tables,
            folder="tables",
            suffix=".toml",
        ),
        JobKind(
            word=FLOW,
            program="spark_jobs/flow.py",
            rooms=(*_SPARK, "flows"),
            desired=_queries(lambda catalog: catalog.flows, _written),
            declared=lambda catalog: catalog.flows,
            folder="flows",
            suffix=".py",
        ),
        JobKind(
            word=DETECTOR,
            program="spark_jobs/detect.py",
            rooms=(*_SPARK, "detect"),
            desired=_queries(lambda catalog: catalog.detectors, hands_over=True),
            declared=lambda catalog: catalog.detectors,
            folder="detectors",
            suffix=".py",
        ),
        JobKind(
            word=COMPUTE,
            program="spark_jobs/compute.py",
            rooms=(*_SPARK, "views/spark", "views/rebuild"),
            desired=_queries(lambda catalog: catalog.views, lambda _, spec: str(spec.computed.window)),
            declared=lambda catalog: catalog.views,
            folder="views",
            suffix=".py",
        ),
        JobKind(
            word=VIEW,
            program="tocsin.views",
            rooms=("kafka", "views"),
            desired=_views,
            declared=lambda catalog: catalog.views,
            folder="views",
            suffix=".py",
        ),
        JobKind(
            word=INDEXER,
            program="tocsin.alerts",
            rooms=_ALERTS,
            desired=lambda _, settings, code: {"": Desired(_spec(code, *_of_alerts(settings)))},
            title="Merges findings into alerts",
            uses_alerts_db=True,
        ),
        JobKind(
            word=NOTIFIER,
            program="tocsin.alerts",
            rooms=_ALERTS,
            desired=lambda _, settings, code: {"": Desired(_spec(code, *_of_alerts(settings), _plain(settings.smtp)))},
            title="Sends what is due",
            uses_alerts_db=True,
        ),
        JobKind(
            word=DRAIN,
            program="tocsin.log_drain",
            rooms=("kafka", "quality", "ingest", "log_drain"),
            desired=_drain,
            title="Takes lines over HTTP",
            wanted=lambda settings: settings.drain.credentials_file is not None,
        ),
        JobKind(
            word=WEB,
            program="tocsin.views.rest",
            rooms=("kafka", "views"),
            desired=_web,
            title="Answers questions about views",
            wanted=lambda settings: any((settings.project / "views").glob("*.py")),
        ),
    )
}
"""By their words, in the order of their start."""


# Rooms with code that every job runs.
_CORE = ("model", "project", "runtime")


def desired_jobs(catalog: Catalog, settings: Settings) -> dict[str, Desired]:
    """Return every job that should run, in the order of its start.

    One ingest for each source with records of its own, one job for each table, and for each flow, detector and view in
    a stage that runs, the indexer, the notifier, and the log drain where somebody may send. A job whose file cannot be
    read now is unreadable: left alone until it can.
    """
    jobs: dict[str, Desired] = {}
    for kind in KINDS.values():
        desired = kind.desired(catalog, settings, _code(kind.program, kind.rooms))
        jobs |= {kind.job(name): one for name, one in desired.items()}
        jobs |= {kind.job(name): UNREADABLE for name in kind.broken(catalog)}
    return jobs


def forget_code() -> None:
    """Read the platform's code again at the next call: for a process that lives longer than one deployment."""
    _code.cache_clear()


@functools.cache
def _code(program: str, rooms: tuple[str, ...]) -> str:
    """Hash the platform's code of one kind of job, read once in the life of this process."""
    root, digest = here().root, hashlib.sha256()
    places = [root / "src" / "tocsin" / room for room in (*_CORE, *rooms)]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    for path in [*files, *([root / program] if program.endswith(".py") else [])]:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
