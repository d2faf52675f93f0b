"""Which jobs should run for what is declared, and from which spec each."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from tocsin.model.detector import DetectorSpec
from tocsin.model.names import INDEXER, NOTIFIER, detector_job, ingest_job
from tocsin.model.source import Source
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.job_states import UNREADABLE, Desired

# Rooms whose code a job runs: where one has changed, the job is replaced.
_CORE = ("model", "project", "runtime", "kafka")
_SPARK = (*_CORE, "quality", "sparkjob", "ingest", "detect")
_ALERTS = (*_CORE, "history", "backfill", "alerts")

# What a job does with its source. History and topics are looked after by others, people are for the mails.
_NOT_INGESTED = {"title", "owner", "history_days", "partitions", "silent_after"}
_DETECTED = {"name", "lateness", "columns"}


def desired_jobs(catalog: Catalog, settings: Settings) -> dict[str, Desired]:
    """Every job that should run, in the order of its start.

    One ingest for each declared source, one job for each detector in a stage that runs, the indexer and the notifier. A
    job whose file cannot be read now is unreadable: left alone until it can be.
    """
    jobs: dict[str, Desired] = {}
    for name, source in catalog.sources.items():
        declared = _plain(source, exclude=_NOT_INGESTED)
        jobs[ingest_job(name)] = Desired(_spec(_code(*_SPARK), _spark_settings(settings), declared), heavy=True)
    for name, spec in catalog.detectors.items():
        if spec.stage.runs:
            jobs[detector_job(name)] = _detector(spec, catalog.sources[spec.source], settings)
    for place in catalog.broken:
        folder, _, name = place.partition("/")
        jobs[ingest_job(name) if folder == "sources" else detector_job(name)] = UNREADABLE
    sink = [_code(*_ALERTS), _plain(settings.kafka), _plain(settings.alerts)]
    jobs[INDEXER] = Desired(_spec(*sink))
    jobs[NOTIFIER] = Desired(_spec(*sink, _plain(settings.smtp)))
    return jobs


def _detector(spec: DetectorSpec, source: Source, settings: Settings) -> Desired:
    """A changed detector replaces its own job alone; what does not touch its findings (owner, stage) replaces none."""
    reads = [_plain(source, include=_DETECTED), spec.version, str(spec.slide), str(spec.score)]
    of = _spec(_code(*_SPARK), _spark_settings(settings), *reads)
    return Desired(of, heavy=True, memory_bytes=spec.memory, hands_over=True)


def _spark_settings(settings: Settings) -> str:
    return f"{_plain(settings.kafka)} {_plain(settings.spark)}"


def _spec(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _plain(model: BaseModel, include: set[str] | None = None, exclude: set[str] | None = None) -> str:
    """`model`, or these fields of it, as text that is the same in every process: sets in order."""
    return json.dumps(_sorted(model.model_dump(include=include, exclude=exclude)), sort_keys=True, default=str)


def _sorted(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _sorted(one) for key, one in value.items()}
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else value


def forget_code() -> None:
    """Read the platform's code again at the next call: for a process that lives longer than one deployment."""
    _code.cache_clear()


@functools.cache
def _code(*rooms: str) -> str:
    """Hash the platform's code in `rooms`, once in the life of this process."""
    root = here().root
    files = [path for room in rooms for path in sorted((root / "src" / "tocsin" / room).rglob("*.py"))]
    if rooms == _SPARK:
        files += sorted((root / "spark_jobs").glob("*.py"))
    return _hash(root, tuple(files))


def _hash(root: Path, files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
