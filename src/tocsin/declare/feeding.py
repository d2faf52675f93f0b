"""Check how what is declared fits together: each source of format `events` has one flow, no loop, tables that exist."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tocsin.declare.model.detector import FINDINGS_OF, DetectorSpec
from tocsin.declare.model.durations import longest
from tocsin.declare.model.errors import Fault, nearest
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.names import FLOW, INGEST, JobName, Names
from tocsin.declare.model.source import ENVELOPE, Format, Source
from tocsin.declare.model.table import TableSpec
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.sinks import SINKS

_FINDING_COLUMNS = {
    "finding_id": "string", "detector": "string", "level": "string", "window_start": "timestamp",
    "window_end": "timestamp",
}  # fmt: skip
_SLACK = timedelta(seconds=10)
_LONGEST_BATCH = timedelta(seconds=70)  # of a job that joins tables, and until it has looked for them


@dataclass(frozen=True)
class Feeder:
    """A job through which events come: `ingest:<source>`, which reads raw records, or the flow that writes them.

    `sources` are those whose records it reads; an ingest reads one.
    """

    job: str
    sources: tuple[str, ...]
    is_ingest: bool

    @property
    def is_query(self) -> bool:
        """Return whether its checkpoint tells how far it has read: so that of an ingest and a flow does."""
        return JobName.parse(self.job).kind in (INGEST, FLOW)

    def reads(self, names: Names) -> tuple[str, ...]:
        """Name the topics that it reads."""
        return tuple(names.raw(source) if self.is_ingest else names.events(source) for source in self.sources)


def findings_source(spec: DetectorSpec, lateness: timedelta) -> Source:
    """Describe the source that is made of the findings of `spec`, whose own sources have this `lateness`.

    An event is a level that a finding has reached. Its time is that of the finding, which all its versions share: the
    start of its window, so it may be a window late before the lateness of the events counts.
    """
    return Source(
        name=FINDINGS_OF + spec.name,
        title=f"Findings of {spec.name}",
        owner=spec.owner,
        formats=(Format.EVENTS,),
        key="finding_id",
        lateness=longest(spec) + lateness + _SLACK,
        partitions=1,
        columns=_FINDING_COLUMNS | dict.fromkeys(spec.entity, "string"),
        optional=frozenset({"window_start", "window_end"}),
    )


def faults_of_findings(detectors: Mapping[str, DetectorSpec], broken: Collection[str]) -> dict[str, list[Fault]]:
    """Find what is wrong with the detectors whose findings others read, by the name of the reader."""
    found: dict[str, list[Fault]] = {}
    for name, spec in detectors.items():
        for read in spec.read_detectors:
            other = detectors.get(read)
            if other is None:
                state = "is broken" if f"detectors/{read}" in broken else "does not exist"
                what, near = f"detector '{read}' {state}", nearest(read, detectors)
            elif shared := sorted(_FINDING_COLUMNS.keys() & set(other.entity)):
                what, near = f"the entity column '{shared[0]}' of '{read}' is also a column of findings", None
            elif spec.stage.runs and not other.stage.runs:
                what, near = f"detector '{read}' finds nothing, since its stage is {other.stage}", None
            else:
                continue
            found.setdefault(name, []).append(Fault(str(spec.path), what, key="source", nearest=near))
    edges = {name: spec.read_detectors for name, spec in detectors.items() if name not in found}
    while loop := _loop(edges):
        what = f"detectors read each other's findings in a loop: {' -> '.join(loop)}"
        for name in set(loop):
            found[name] = [Fault(str(detectors[name].path), what, key="source")]
        edges = {name: read for name, read in edges.items() if name not in loop}
    return found


def faults_of_flows(flows: Mapping[str, FlowSpec], sources: Mapping[str, Source]) -> dict[str, list[Fault]]:
    """Find what is wrong with what flows write, by the name of the flow; each source that they name is there."""
    found: dict[str, list[Fault]] = {}
    for name, spec in flows.items():
        rivals = [other for other, flow in flows.items() if flow.to == spec.to and other != name]
        if not sources[spec.to].is_derived:
            what = f"source '{spec.to}' is read from records of its own; a flow writes one of format \"events\""
            found[name] = [Fault(str(spec.path), what, key="to")]
        elif rivals:
            what = f"source '{spec.to}' is also written by flow {', '.join(rivals)}; one flow writes a source"
            found[name] = [Fault(str(spec.path), what, key="to")]
    while loop := _loop({spec.to: spec.sources for name, spec in flows.items() if name not in found}):
        for name, spec in flows.items():
            if name not in found and spec.to in loop:
                found[name] = [Fault(str(spec.path), f"flows form a loop: {' -> '.join(loop)}", key="to")]
    return found


def faults_of_sources(
    flows: Mapping[str, FlowSpec], sources: Mapping[str, Source], folder: Path
) -> dict[str, list[Fault]]:
    """Find the sources below `folder` that no flow writes though they are of format `events`, by their names."""
    written = {spec.to for spec in flows.values()}
    what = "is events, but no flow writes this source; declare one in flows/, with this source as `to`"
    return {
        name: [Fault(str(folder / f"{name}.toml"), what, key="format")]
        for name, source in sources.items()
        if source.is_derived and name not in written
    }


def models_table(spec: DetectorSpec, sources: Mapping[str, Source]) -> TableSpec:
    """Declare the table of the models of `spec`: which file judges the windows that begin from when on."""
    assert spec.model is not None, "asked for detectors with a model"
    source = sources[spec.sources[0]]
    # Not the version: that changes with the limits, too, and another limit needs no other model.
    trained_by = repr([spec.code, spec.entity, spec.window, spec.slide, spec.time_zone, spec.tables, spec.model])
    return TableSpec(
        name=spec.model_table,
        title=f"models of {spec.name}",
        owner=spec.owner,
        history=source.name,
        sql=hashlib.sha256(trained_by.encode()).hexdigest()[:12],
        days=spec.model.days,
        every=spec.model.every.days,
        trains=spec.name,
        key=("detector",),
        columns={"detector": "string", "day": "string", "hash": "string"},
        settle=max(TableSpec.model_fields["settle"].default, (source.max_ahead + _LONGEST_BATCH) * 4 / 3),
    )


def faults_of_table(
    spec: TableSpec, folder: Path, sources: Mapping[str, Source], views: Mapping[str, ViewSpec]
) -> list[Fault]:
    """Find what is wrong between a table below `folder` and what it is made of."""
    where, found = str(folder / f"{spec.name}.toml"), []
    if spec.source is not None and spec.source not in sources:
        what = f"source '{spec.source}' does not exist, or is broken"
        found.append(Fault(where, what, key="source", nearest=nearest(spec.source, sources)))
    elif spec.source is not None:
        declared = sources[spec.source].columns
        for name, kind in spec.columns.items():
            if declared.get(name) != kind:
                what = f"is {kind}, but source '{spec.source}' declares it as {declared.get(name, 'no column')}"
                found.append(
                    Fault(where, what, key=name, nearest=None if name in declared else nearest(name, declared))
                )
    if spec.history is not None and spec.history not in sources:
        what = f"source '{spec.history}' does not exist, or is broken"
        found.append(Fault(where, what, key="history", nearest=nearest(spec.history, sources)))
    if spec.view is not None and spec.view not in views:
        what = f"view '{spec.view}' does not exist, or is broken"
        found.append(Fault(where, what, key="view", nearest=nearest(spec.view, views)))
    elif spec.view is not None and (views[spec.view].window is not None or views[spec.view].is_condensed):
        what = f"view '{spec.view}' has several rows of one key on its topic; a table needs one with window=None, "
        what += "without keep and total"
        found.append(Fault(where, what, key="view"))
    return found


def faults_of_views(views: Mapping[str, ViewSpec]) -> dict[str, list[Fault]]:
    """Find the views that write one table of a sink, where rows of one would take the place of the other's."""
    found: dict[str, list[Fault]] = {}
    for name, spec in views.items():
        rivals = [
            other for other, view in views.items()
            if other != name and view.stage.runs and (view.sink, view.table) == (spec.sink, spec.table)
        ]  # fmt: skip
        if rivals and spec.stage.runs and spec.sink in SINKS and not SINKS[spec.sink].is_mixed:
            what = f"'{spec.table}' in {spec.sink} is also that of view {', '.join(rivals)}; name another"
            found[name] = [Fault(str(spec.path), what, key="table")]
    return found


def faults_of_joins(spec: FlowSpec | DetectorSpec | ViewSpec, tables: Mapping[str, TableSpec]) -> list[Fault]:
    """Find the tables that `spec` joins and that are not there, or do not hold the entities that it expects."""
    if isinstance(spec, DetectorSpec) and spec.expect is not None and spec.expect.table in tables:
        key = tables[spec.expect.table].key
        if set(key) != set(spec.entity):
            what = f"the key of table '{spec.expect.table}' ({', '.join(key)}) must have the columns of the entity "
            return [Fault(str(spec.path), f"{what}({', '.join(spec.entity)})", key="expect")]
    return [
        Fault(
            str(spec.path), f"table '{name}' does not exist, or is broken", key="tables", nearest=nearest(name, tables)
        )
        for name in spec.tables
        if name not in tables
    ]


def faults_of_environment(spec: FlowSpec | DetectorSpec | ViewSpec, project: Path) -> list[Fault]:
    """Find the environment of `spec` if nothing says what it holds."""
    folder, name = project / "environments", spec.environment
    if not name or (folder / f"{name}.in").is_file():
        return []
    near = nearest(name, [path.stem for path in folder.glob("*.in")])
    what = f"'{name}' does not exist: {folder / name}.in names its packages, one a line"
    return [Fault(str(spec.path), what, key="environment", nearest=near)]


def faults_of_entities(
    spec: FlowSpec | DetectorSpec | ViewSpec, sources: Mapping[str, Source], tables: Mapping[str, TableSpec]
) -> list[Fault]:
    """Find the entity columns of `step` that its events do not have; those of `detect` may be made by its query."""
    if not isinstance(spec, DetectorSpec) or not spec.has_step or spec.read_detectors:
        return []
    columns = {*ENVELOPE, *sources[spec.sources[0]].columns}
    columns.update(*(tables[name].columns for name in spec.tables))
    what = f"is no column of source '{spec.sources[0]}'"
    return [
        Fault(str(spec.path), f"'{column}' {what}", key="entity", nearest=nearest(column, columns))
        for column in spec.entity
        if column.lower() not in {name.lower() for name in columns}
    ]


def _loop(made_of: Mapping[str, Iterable[str]]) -> list[str]:
    graph = TopologicalSorter(made_of)
    try:
        graph.prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []
