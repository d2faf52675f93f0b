"""Desire the jobs of each kind: what each is started with. Pure but for passwords."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from tocsin.declare.blocks.spark_settings import LOCAL, SHARED
from tocsin.declare.catalog import Catalog
from tocsin.declare.keywords import ADDED_MEANING, DETECTOR, FLOW, VIEW
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_kinds import JobKind
from tocsin.declare.model.names import file_name
from tocsin.declare.model.source import Source
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.setup import install_stamp
from tocsin.setup.paths import here
from tocsin.supervise.job_states import Desired
from tocsin.supervise.planning.job_inputs import Inputs, digest, inputs_of, spec_of

# History and topics are looked after by others, people are for the mails.
_FOR_PEOPLE = {"title", "owner"}
_NOT_INGESTED = {*_FOR_PEOPLE, "history_days", "partitions", "silent_after"}
_DETECTED = {"name", "lateness", "columns"}
_NOT_JOINED = {*_FOR_PEOPLE, "keep", "max_rows"}
_LIMITS = {"memory_mb"}
_ON_CLUSTERS = {"master", "resources", "conf", *(_OF_PODS := {"driver_host"})}
_BESIDES_HEAP_MB = 1500
"""Three times what a job of ours holds besides its heap: JVM, RocksDB, Python and its workers."""
_WORKER_MB, _FEW_PARTITIONS = 150, 8
"""A worker of Python, of which a query may have one for each partition; as many as these have room in the rest."""

_MEANING = {"flows": FLOW.meaning, "detectors": DETECTOR.meaning, "views": VIEW.meaning}
_KEPT = {"sink", "table", "key", "total", "keep"}


def one_job(kind: JobKind, _: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire the one job of a kind, which is replaced if the settings change that it reads.

    Those that read declared files read them again when these change.
    """
    if kind.server and not getattr(getattr(settings, kind.server), "enabled", True):
        return {}
    return {"": _desired(settings, code, *_blocks(kind, settings))}


def engines(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire as many engines as the jobs need that share them, `live-1` and so on for those that are live."""
    specs: list[FlowSpec | DetectorSpec | ViewSpec] = [
        *catalog.flows.values(),
        *catalog.detectors.values(),
        *catalog.views.values(),
    ]
    pools = Counter(settings.pool(spec) for spec in specs if spec.stage.runs)
    inputs = inputs_of("spark", settings.spark, only=SHARED), inputs_of("engine", settings.engine), _stored(settings)
    # Without a limit: an engine that takes too much ends itself, as a failure after which it may isolate jobs.
    desired = _desired(settings, code, *inputs, heavy=True, hands_over=kind.hands_over, hosts_jobs=True)
    return {
        f"{pool}-{number}": desired
        for pool, count in sorted(pools.items())
        if pool
        for number in range(1, math.ceil(count / settings.engine.jobs) + 1)
    }


def ingests(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire a job for each source with records of its own; history and mails are the business of others."""
    del kind
    spark = _spark(settings, but=_ON_CLUSTERS)
    return {
        name: _desired(
            settings, code, _source(source, but=_NOT_INGESTED), spark, heavy=True,
            memory_bytes=memory_limit(settings, [source]),
        )
        for name, source in catalog.sources.items() if not source.is_derived
    }  # fmt: skip


def tables(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire a job for each table."""
    return {
        name: _desired(settings, code, *_blocks(kind, settings), inputs_of(f"table {name}", spec, but=_FOR_PEOPLE))
        for name, spec in catalog.kept_tables.items()
    }


def queries(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire a job for each flow, detector or view whose stage runs.

    It is replaced if its version changes, its source or the platform; what does not touch its results, such as owner
    and stage, replaces none.
    """
    is_on_cluster = kind.has_executors and settings.spark.master != LOCAL
    meaning = {*_MEANING[kind.folder], *ADDED_MEANING, *({"resources"} if is_on_cluster else ())}
    unused = _ON_CLUSTERS if not is_on_cluster else _OF_PODS if settings.runner.kind == "kubernetes" else set()
    desired, spark = {}, _spark(settings, but=unused)
    specs: Mapping[str, FlowSpec | DetectorSpec | ViewSpec] = getattr(catalog, kind.folder)
    for name, spec in specs.items():
        if spec.stage.runs:
            sources = [catalog.source(source) for source in spec.sources]
            parts = [_source(source, only=_DETECTED) for source in sources]
            parts += [inputs_of(f"table {table}", catalog.tables[table], but=_NOT_JOINED) for table in spec.tables]
            own = inputs_of("declared", {key: value for key, value in vars(spec).items() if key in meaning})
            own |= {"version": spec.version, "code": spec.code}
            own |= _environment(spec)
            own |= inputs_of("engine", {"pool": settings.pool(spec), "latency": spec.latency})
            desired[name] = _desired(
                settings, code, spark, own, _written(catalog, spec), *parts, heavy=True,
                memory_bytes=memory_limit(settings, sources, getattr(spec, "memory", None)),
                hands_over=kind.hands_over and not is_on_cluster,  # a full cluster has no room for both
            )  # fmt: skip
    return desired


def drain(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire it if somebody may send. It reads the passwords once, so it is replaced when they are written anew."""
    credentials = settings.drain.credentials_file
    if credentials is None:
        return {}
    sources = [_source(source, but={*_NOT_INGESTED, "enrich"}) for source in catalog.sources.values()]
    written = str(credentials.stat().st_mtime_ns) if credentials.exists() else ""
    return {"": _desired(settings, code, *_blocks(kind, settings), {"credentials": written}, *sources)}


def views(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Replace the job when a view is stored elsewhere, or longer; what it computes is the business of another job."""
    return {
        name: _desired(
            settings, code, *_blocks(kind, settings),
            inputs_of("declared", {key: value for key, value in vars(spec).items() if key in _KEPT}),
        )
        for name, spec in catalog.views.items()
        if spec.stage.runs
    }  # fmt: skip


def memory_limit(settings: Settings, sources: Iterable[Source], declared: int | None = None) -> int:
    """Limit how many bytes a Spark job that reads `sources` may hold resident: as its file says, else the settings."""
    if declared is not None:
        return declared
    spark = settings.spark
    partitions = sum(source.partitions for source in sources) + spark.shuffle_partitions
    besides = _BESIDES_HEAP_MB + _WORKER_MB * max(0, partitions - _FEW_PARTITIONS)
    return (spark.memory_mb or spark.heap_mb + besides) * 1_000_000


def _written(catalog: Catalog, spec: FlowSpec | DetectorSpec | ViewSpec) -> Inputs:
    """Give the inputs of the source that a flow writes; of a view its period length, which may follow from `keep`."""
    if isinstance(spec, FlowSpec):
        return _source(catalog.sources[spec.to], but=_NOT_INGESTED)
    return inputs_of("computed", {"window": spec.computed.window}) if isinstance(spec, ViewSpec) else {}


def _environment(spec: FlowSpec | DetectorSpec | ViewSpec) -> dict[str, str]:
    """Give what is installed in the environment of `spec`: its job is replaced when that changes."""
    name = spec.environment
    return {"environment": f"{name} {install_stamp.stamp_of(here().environment(name))}"} if name else {}


def _blocks(kind: JobKind, settings: Settings) -> list[Inputs]:
    return [inputs_of(block, getattr(settings, block), but=left) for block, left in kind.settings.items()]


def _spark(settings: Settings, *, but: Set[str] = frozenset()) -> dict[str, str]:
    return inputs_of("spark", settings.spark, but={*_LIMITS, *but}) | _stored(settings)


def _stored(settings: Settings) -> dict[str, str]:
    return inputs_of("storage", settings.storage, but={"history"})


def _source(source: Source, *, only: set[str] | None = None, but: set[str] | None = None) -> dict[str, str]:
    return inputs_of(f"source {source.name}", source, only=only, but=but)


def _desired(settings: Settings, code: str, *parts: Inputs, **more: Any) -> Desired:
    inputs = {"platform": digest(code)} | inputs_of("kafka", settings.kafka)
    for part in parts:
        inputs |= part
    return Desired(spec_of(inputs), inputs=inputs, **more)


_VERSIONS = 3  # the version that runs, the one that is to take over from it, and the one before


class StartRecord(BaseModel, frozen=True):
    """One start of a job, `at` epoch seconds; the labels of the process have the same `spec`, the hash of `inputs`."""

    spec: str
    at: float
    inputs: dict[str, str] = Field(default_factory=dict)


def note_start(state: Path, job: str, wanted: Desired) -> None:
    """Note that `job` is started as `wanted`; raises OSError if the state folder cannot be written."""
    others = [start for start in read_starts(state, job) if start.spec != wanted.spec]
    new = StartRecord(spec=wanted.spec, at=time.time(), inputs=dict(wanted.inputs))
    state_file.write(_path(state, job), list[StartRecord], [*others, new][-_VERSIONS:])


def read_starts(state: Path, job: str) -> list[StartRecord]:
    """Read the last starts of `job` from different specs, the latest at the end; none if the file is missing."""
    return state_file.read(_path(state, job), list[StartRecord], [])


def _path(state: Path, job: str) -> Path:
    return state / "supervision" / "starts" / f"{file_name(job)}.json"
