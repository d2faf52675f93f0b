"""Desire the jobs of each kind: what each is started with. Pure but for passwords."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from tocsin.model.detector import DetectorSpec
from tocsin.model.flow import FlowSpec
from tocsin.model.source import Source
from tocsin.model.view import ViewSpec
from tocsin.project.blocks.spark_settings import LOCAL
from tocsin.project.catalog import Catalog
from tocsin.project.keywords import ADDED_MEANING, FLOW, DeclaredKind
from tocsin.project.settings import Settings
from tocsin.supervision.job_states import Desired
from tocsin.supervision.planning.job_inputs import Inputs, digest, inputs_of, spec_of

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

_KEPT = {"sink", "table", "key", "total", "keep"}


def ingests(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire a job for each source with records of its own; history and mails are the business of others."""
    spark = _spark(settings, but=_ON_CLUSTERS)
    return {
        name: _desired(
            settings, code, _source(source, but=_NOT_INGESTED), spark, heavy=True,
            memory_bytes=memory_limit(settings, [source]),
        )
        for name, source in ingested(catalog).items()
    }  # fmt: skip


def ingested(catalog: Catalog) -> dict[str, Source]:
    """Select the sources with records of their own."""
    return {name: source for name, source in catalog.sources.items() if not source.is_derived}


def tables(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire a job for each table."""
    return {
        name: _desired(settings, code, inputs_of(f"table {name}", spec, but=_FOR_PEOPLE))
        for name, spec in catalog.kept_tables.items()
    }


def queries(
    kind: DeclaredKind,
    declared: Callable[[Catalog], Mapping[str, FlowSpec | DetectorSpec | ViewSpec]],
    more: Callable[[Catalog, Any], Inputs] = lambda catalog, spec: {},
    *,
    hands_over: bool = False,
) -> Callable[[Catalog, Settings, str], dict[str, Desired]]:
    """Desire a job for each file whose stage runs.

    It is replaced if its version changes, its source, the platform or `more`; what does not touch its results, such as
    owner and stage, replaces none.
    """

    def desired(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
        is_on_cluster = kind is not FLOW and settings.spark.master != LOCAL
        meaning = {*kind.meaning, *ADDED_MEANING, *({"resources"} if is_on_cluster else ())}
        unused = _ON_CLUSTERS if not is_on_cluster else _OF_PODS if settings.runner.kind == "kubernetes" else set()
        made, spark = {}, _spark(settings, but=unused)
        for name, spec in declared(catalog).items():
            if spec.stage.runs:
                sources = [catalog.source(one) for one in spec.sources]
                parts = [_source(source, only=_DETECTED) for source in sources]
                parts += [inputs_of(f"table {one}", catalog.tables[one], but=_NOT_JOINED) for one in spec.tables]
                own = inputs_of("declared", {key: one for key, one in vars(spec).items() if key in meaning})
                own |= {"version": spec.version, "code": spec.code}
                made[name] = _desired(
                    settings, code, spark, own, more(catalog, spec), *parts, heavy=True,
                    memory_bytes=memory_limit(settings, sources, getattr(spec, "memory", None)),
                    hands_over=hands_over and not is_on_cluster,  # a full cluster has no room for both
                )  # fmt: skip
        return made

    return desired


def written_source(catalog: Catalog, flow: FlowSpec) -> Inputs:
    """Give what a flow needs of the source that it writes."""
    return _source(catalog.sources[flow.to], but=_NOT_INGESTED)


def computed_window(_: Catalog, view: ViewSpec) -> Inputs:
    """Give the length of the periods that Spark computes, which may follow from `keep`."""
    return inputs_of("computed", {"window": view.computed.window})


def drain(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Replace it too when the passwords are written anew: it reads them once."""
    credentials = settings.drain_credentials
    if credentials is None:
        return {}
    sources = [_source(source, but={*_NOT_INGESTED, "enrich"}) for source in catalog.sources.values()]
    written = str(credentials.stat().st_mtime_ns) if credentials.exists() else ""
    return {"": _desired(settings, code, inputs_of("drain", settings.drain), {"credentials": written}, *sources)}


def views(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Replace the job when a view is kept elsewhere, or longer; what it computes is the business of another job."""
    views = inputs_of("views", settings.views)
    return {
        name: _desired(
            settings, code, views, inputs_of("declared", {key: one for key, one in vars(spec).items() if key in _KEPT}),
        )
        for name, spec in catalog.views.items()
        if spec.stage.runs
    }  # fmt: skip


def web(catalog: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Serve REST while there are views; the server reads their files again when these change."""
    return {"": _desired(settings, code, inputs_of("web", settings.web))} if catalog.views else {}


def exporter(_: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Serve figures if the settings ask for it; the exporter reads the declared files again when these change."""
    if not settings.metrics.enabled:
        return {}
    blocks = {name: getattr(settings, name) for name in ("metrics", "alerts", "history")}
    return {"": _desired(settings, code, *(inputs_of(name, block) for name, block in blocks.items()))}


def indexer(_: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire the indexer, which removes nothing: how long findings are kept is the business of the notifier."""
    return {"": _desired(settings, code, inputs_of("alerts", settings.alerts, but={"history_days"}))}


def notifier(_: Catalog, settings: Settings, code: str) -> dict[str, Desired]:
    """Desire the notifier."""
    return {"": _desired(settings, code, inputs_of("alerts", settings.alerts), inputs_of("smtp", settings.smtp))}


def memory_limit(settings: Settings, sources: Iterable[Source], declared: int | None = None) -> int:
    """Limit how many bytes a Spark job that reads `sources` may hold resident: as its file says, else the settings."""
    if declared is not None:
        return declared
    spark = settings.spark
    partitions = sum(source.partitions for source in sources) + spark.shuffle_partitions
    besides = _BESIDES_HEAP_MB + _WORKER_MB * max(0, partitions - _FEW_PARTITIONS)
    return (spark.memory_mb or spark.heap_mb + besides) * 1_000_000


def _spark(settings: Settings, *, but: Set[str] = frozenset()) -> Inputs:
    """Give the settings of a Spark job, all `but` some, and of where its checkpoint lies."""
    stored = inputs_of("storage", settings.storage, but={"history"})
    return inputs_of("spark", settings.spark, but={*_LIMITS, *but}) | stored


def _source(source: Source, *, only: set[str] | None = None, but: set[str] | None = None) -> dict[str, str]:
    return inputs_of(f"source {source.name}", source, only=only, but=but)


def _desired(settings: Settings, code: str, *parts: Inputs, **more: Any) -> Desired:
    """Desire a job that is started with the platform's `code`, the settings of Kafka, and `parts`."""
    inputs = {"platform": digest(code)} | inputs_of("kafka", settings.kafka)
    for part in parts:
        inputs |= part
    return Desired(spec_of(inputs), inputs=inputs, **more)
