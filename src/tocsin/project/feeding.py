"""Check how what is declared fits together: each source of format `events` has one flow, no loop, tables that exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import Fault, nearest
from tocsin.model.flow import FlowSpec
from tocsin.model.names import Names
from tocsin.model.source import Source
from tocsin.model.table import TableSpec
from tocsin.model.view import ViewSpec


@dataclass(frozen=True)
class Feeder:
    """A job through which events come: `ingest:<source>`, or the flow that writes them.

    Attributes:
        job: its name.
        source: the source whose records it reads.
        is_ingest: it reads raw records; a flow reads events.
    """

    job: str
    source: str
    is_ingest: bool

    def reads(self, names: Names) -> str:
        """Name the topic that it reads."""
        return names.raw(self.source) if self.is_ingest else names.events(self.source)


def faults_of_flows(flows: Mapping[str, FlowSpec], sources: Mapping[str, Source]) -> dict[str, list[Fault]]:
    """Find what is wrong with what flows write, by the name of the flow; each source that they name is there."""
    found: dict[str, list[Fault]] = {}
    for name, spec in flows.items():
        rivals = [other for other, one in flows.items() if one.to == spec.to and other != name]
        if not sources[spec.to].is_derived:
            what = f"source '{spec.to}' is read from records of its own; a flow writes one of format \"events\""
            found[name] = [Fault(str(spec.path), what, key="to")]
        elif rivals:
            what = f"source '{spec.to}' is also written by flow {', '.join(rivals)}; one flow writes a source"
            found[name] = [Fault(str(spec.path), what, key="to")]
    while loop := _loop(spec for name, spec in flows.items() if name not in found):
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
    if spec.view is not None and spec.view not in views:
        what = f"view '{spec.view}' does not exist, or is broken"
        found.append(Fault(where, what, key="view", nearest=nearest(spec.view, views)))
    elif spec.view is not None and (views[spec.view].window is not None or views[spec.view].is_condensed):
        what = f"view '{spec.view}' has several rows of one key on its topic; a table needs one with window=None, "
        what += "without keep and total"
        found.append(Fault(where, what, key="view"))
    return found


def faults_of_joins(spec: FlowSpec | DetectorSpec | ViewSpec, tables: Mapping[str, TableSpec]) -> list[Fault]:
    """Find the tables that `spec` joins and that are not there."""
    return [
        Fault(
            str(spec.path), f"table '{name}' does not exist, or is broken", key="tables", nearest=nearest(name, tables)
        )
        for name in spec.tables
        if name not in tables
    ]


def _loop(flows: Iterable[FlowSpec]) -> list[str]:
    """Find sources that are made of themselves, each of the one before, the first again as the last; none without."""
    graph: TopologicalSorter[str] = TopologicalSorter()
    for spec in flows:
        graph.add(spec.to, spec.source)
    try:
        graph.prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []
