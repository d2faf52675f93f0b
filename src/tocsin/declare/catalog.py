"""Everything that is declared in one project: its sources, tables, flows, detectors and views, and its routes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from tocsin.declare.code.outside_code import lock_files
from tocsin.declare.code.own_modules import lib_files
from tocsin.declare.declaration import read_flow, read_spec, read_view
from tocsin.declare.feeding import (
    Feeder,
    faults_of_entities,
    faults_of_environment,
    faults_of_findings,
    faults_of_flows,
    faults_of_joins,
    faults_of_sources,
    faults_of_table,
    faults_of_views,
    findings_source,
    models_table,
)
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.declare.model.detector import FINDINGS_OF, DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.names import DETECTOR, FLOW, INDEXER, JobName, compute_job, detector_job, flow_job, ingest_job
from tocsin.declare.model.source import Source
from tocsin.declare.model.table import TableSpec
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.routes import ROUTES_FILE, faults_of_routes, read_routes, why_never
from tocsin.declare.settings import Settings, load_settings
from tocsin.declare.source_file import read_source, read_table

Declared = Source | TableSpec | FlowSpec | DetectorSpec | ViewSpec
_Declared = TypeVar("_Declared", Source, TableSpec, FlowSpec, DetectorSpec, ViewSpec)
_Code = TypeVar("_Code", FlowSpec, DetectorSpec, ViewSpec)
_READ: dict[Path, tuple[tuple[int, ...], Declared | ConfigError]] = {}
_CODE = "[!_]*.py"
_SETTLED_NS = 2_000_000_000  # the clock of a file system is coarse: a file may change again within one tick of it


@dataclass(frozen=True)
class Catalog:
    """All that is declared, by kind and name, and the faults of broken files by name; such a file hides only itself."""

    sources: dict[str, Source] = field(default_factory=dict)
    tables: dict[str, TableSpec] = field(default_factory=dict)
    flows: dict[str, FlowSpec] = field(default_factory=dict)
    detectors: dict[str, DetectorSpec] = field(default_factory=dict)
    views: dict[str, ViewSpec] = field(default_factory=dict)
    broken: dict[str, ConfigError] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """The source called `name`, perhaps findings; ConfigError with the nearest valid name when there is none."""
        if name.startswith(FINDINGS_OF):
            spec = self.detector(name.removeprefix(FINDINGS_OF))
            return findings_source(spec, max(source.lateness for source in self.sources_of(spec)))
        return self._one(self.sources, name, "source")

    def version_of(self, job: str) -> str:
        """Return the version in the file of a detector's or flow's job; empty if the file is gone or is broken."""
        own = JobName.parse(job)
        spec = (self.detectors if own.kind == DETECTOR else self.flows).get(own.name)
        return "" if spec is None else spec.version

    def why_idle(self, matcher: AlertMatcher) -> str:
        """Say why `matcher` takes no alert of any detector that is declared; empty if it may, or none is declared."""
        return why_never(matcher, list(self.detectors.values()), _unread(self.broken)) if self.detectors else ""

    def versioned_job(self, name: str) -> str:
        """Find the job of the detector or flow `name`; where both are called so, of `detector:NAME` or `flow:NAME`.

        ConfigError if there is none, or there are two.
        """
        if JobName.parse(name).kind in (DETECTOR, FLOW) and JobName.parse(name).name:
            return name
        broken = [place.partition("/") for place in self.broken]
        there = {
            detector_job: {*self.detectors, *(own for folder, _, own in broken if folder == "detectors")},
            flow_job: {*self.flows, *(own for folder, _, own in broken if folder == "flows")},
        }
        found = [job(name) for job, names in there.items() if name in names]
        if len(found) > 1:
            raise ConfigError.one(name, f"there are two of this name; say {' or '.join(found)}")
        if not found:
            known = sorted(set().union(*there.values()))
            what = f"no detector or flow '{name}' (there are: {', '.join(known) or 'none'})"
            raise ConfigError([Fault("detectors/, flows/", what, nearest=nearest(name, known))])
        return found[0]

    def has_source(self, name: str) -> bool:
        """Return whether `source` finds it."""
        is_findings = name.startswith(FINDINGS_OF)
        return name.removeprefix(FINDINGS_OF) in self.detectors if is_findings else name in self.sources

    @property
    def read_findings(self) -> dict[str, Source]:
        """The sources that are made of the findings of detectors, as far as one that runs reads them, by name."""
        read = [spec for spec in self.detectors.values() if spec.stage.runs]
        return {
            f"{FINDINGS_OF}{name}": self.source(f"{FINDINGS_OF}{name}") for spec in read for name in spec.read_detectors
        }

    def recorded_source(self, name: str) -> Source:
        """The source called `name`, which has raw records; ConfigError also when a flow writes its events."""
        source = self.source(name)
        if source.is_derived:
            known = [known_name for known_name, declared in self.sources.items() if not declared.is_derived]
            what = f"source '{name}' has no records: a flow writes its events (with records there are: "
            raise ConfigError([Fault(f"sources/{name}.toml", f"{what}{', '.join(sorted(known)) or 'none'})")])
        return source

    def origin(self, name: str, records: str = "") -> Source:
        """The source whose records become events of the source `name`: itself, or that with which its flows begin.

        Of several, `records` names one; ConfigError if that is missing then, or is none of them.
        """
        self.source(name)
        found = [feeder.sources[0] for feeder in self.upstream(name) if feeder.is_ingest]
        chosen = records or (found[0] if len(set(found)) == 1 else "")
        if chosen in found:
            return self.source(chosen)
        what = f"the events of '{name}' are made of records of {' or '.join(found) or 'no source'}"
        asked = f", not of '{records}'" if records else "; say of which: --records NAME"
        raise ConfigError([Fault(f"sources/{name}.toml", what + asked, nearest=nearest(records, found))])

    def detector(self, name: str) -> DetectorSpec:
        """The detector called `name`; ConfigError with the nearest valid name when there is none."""
        return self._one(self.detectors, name, "detector")

    def flow(self, name: str) -> FlowSpec:
        """The flow called `name`; errors as `detector`."""
        return self._one(self.flows, name, "flow")

    def view(self, name: str) -> ViewSpec:
        """The view called `name`; errors as `detector`."""
        return self._one(self.views, name, "view")

    def table(self, name: str) -> TableSpec:
        """The table called `name`; errors as `detector`."""
        return self._one(self.tables, name, "table")

    @property
    def kept_tables(self) -> dict[str, TableSpec]:
        """Tables that a job keeps: all but those that are made of history once a day."""
        return {name: spec for name, spec in self.tables.items() if spec.history is None}

    def history_tables(self, source: str | None = None) -> list[TableSpec]:
        """Tables that are made of history: of that of `source`, or of any."""
        tables = [spec for spec in self.tables.values() if spec.history is not None]
        return [spec for spec in tables if source in (None, spec.history)]

    def detectors_of(self, source: str) -> list[DetectorSpec]:
        """Detectors that read `source`, perhaps beside others, and are in a stage that runs."""
        return [spec for spec in self.detectors.values() if source in spec.sources and spec.stage.runs]

    def backfilled_of(self, source: str) -> list[DetectorSpec]:
        """Those of `detectors_of` that also run on days of history."""
        return [spec for spec in self.detectors_of(source) if not spec.stream_only]

    def upstream(self, source: str) -> list[Feeder]:
        """List the jobs through which events of `source` come, the last one first: its flow, those before, ingests.

        Only as far as it is known: a flow whose file is broken is missing, and all before it.
        """
        if source.startswith(FINDINGS_OF):
            spec = self.detector(source.removeprefix(FINDINGS_OF))
            before = [feeder for read in spec.sources for feeder in self.upstream(read)]
            return [Feeder(job, (source,), is_ingest=False) for job in (INDEXER, detector_job(spec.name))] + before
        feeders: list[Feeder] = []
        reached = [source]
        for name in reached:
            if name not in self.sources or not self.sources[name].is_derived:
                feeders.append(Feeder(ingest_job(name), (name,), is_ingest=True))
            elif flow := next((candidate for candidate in self.flows.values() if candidate.to == name), None):
                feeders.append(Feeder(flow_job(flow.name), flow.sources, is_ingest=False))
                reached += [origin for origin in flow.sources if origin not in reached]
        return feeders

    def feeders_of(self, sources: Iterable[str]) -> list[Feeder]:
        """List the ingests and flows through which the events of `sources` come."""
        found = (feeder for source in sources for feeder in self.upstream(source) if feeder.is_query)
        return list(dict.fromkeys(found))

    def downstream(self, source: str) -> list[str]:
        """List the jobs that keep state of events of `source`: detectors and views, also behind flows and findings."""
        reached = [source]
        for name in reached:
            made = [flow.to for flow in self.flows.values() if name in flow.sources]
            made += [f"{FINDINGS_OF}{detector.name}" for detector in self.detectors_of(name)]
            reached += [target for target in made if target not in reached]
        detectors = dict.fromkeys(
            detector_job(detector.name) for name in reached for detector in self.detectors_of(name)
        )
        read = [view for view in self.views.values() if not set(reached).isdisjoint(view.sources)]
        views = [compute_job(view.name) for view in read if view.stage.runs]
        return [*detectors, *views]

    def sources_of(self, spec: DetectorSpec | FlowSpec | ViewSpec) -> list[Source]:
        """The sources that `spec` reads; ConfigError with the nearest valid name where there is none."""
        return [self.source(name) for name in spec.sources]

    def only_source(self, spec: DetectorSpec) -> Source:
        """The source of a detector that cases can test; ConfigError if it reads several."""
        if not spec.has_one_source:
            what = f"reads several sources ({', '.join(spec.sources)}), and cases and files are of one"
            raise ConfigError.one(spec.path, what, key="source")
        return self.source(spec.sources[0])

    def history_source(self, spec: DetectorSpec) -> Source:
        """The source of a detector that can be run on days of history; ConfigError if it reads several, or findings."""
        if why := spec.stream_only:
            raise ConfigError.one(spec.path, f"runs only on the stream: it {why}", key="source")
        return self.source(spec.sources[0])

    def _one(self, declared: dict[str, _Declared], name: str, kind: str) -> _Declared:
        if name in declared:
            return declared[name]
        if f"{kind}s/{name}" in self.broken:
            raise self.broken[f"{kind}s/{name}"]
        names = ", ".join(sorted(declared)) or "none"
        raise ConfigError(
            [Fault(f"{kind}s/", f"no {kind} '{name}' (there are: {names})", nearest=nearest(name, declared))]
        )


def read_catalog(project: Path) -> Catalog:
    """Read all that is declared in the folders of `project`; never raises for a broken file."""
    broken: dict[str, ConfigError] = {}
    sources = _read(project / "sources", "*.toml", read_source, broken)
    tables = _read(project / "tables", "*.toml", read_table, broken)
    flows = _read_flows(project, sources, broken)
    detectors = _read_code(project / "detectors", read_spec, sources, broken)
    views = _read_code(project / "views", read_view, sources, broken)
    _take_out(views, faults_of_views(views), project / "views", broken)
    tables |= {spec.model_table: models_table(spec, sources) for spec in detectors.values() if spec.model is not None}
    made = {name: faults_of_table(spec, project / "tables", sources, views) for name, spec in tables.items()}
    _take_out(tables, made, project / "tables", broken)
    code: dict[str, dict[str, Any]] = {"flows": flows, "detectors": detectors, "views": views}
    for folder, declared in code.items():
        joins = {name: faults_of_joins(spec, tables) for name, spec in declared.items()}
        _take_out(declared, joins, project / folder, broken)
        entities = {name: faults_of_entities(spec, sources, tables) for name, spec in declared.items()}
        _take_out(declared, entities, project / folder, broken)
        own = {name: faults_of_environment(spec, project) for name, spec in declared.items()}
        _take_out(declared, own, project / folder, broken)
    while unread := faults_of_findings(detectors, broken.keys()):  # one that is taken out may have a reader
        _take_out(detectors, unread, project / "detectors", broken)
    if faults := _faults_of_routes(project, detectors, broken):
        broken[ROUTES_FILE] = ConfigError(faults)
    return Catalog(sources, tables, flows, detectors, views, broken)


def load_project() -> tuple[Settings, Catalog]:
    """Read the settings, and all that is declared in their project."""
    settings = load_settings()
    return settings, read_catalog(settings.project)


def _faults_of_routes(
    project: Path, detectors: dict[str, DetectorSpec], broken: dict[str, ConfigError]
) -> Sequence[Fault]:
    try:
        return faults_of_routes(read_routes(project), project, detectors.values(), _unread(broken))
    except ConfigError as error:
        return error.faults


def _unread(broken: Iterable[str]) -> set[str]:
    return {name for folder, _, name in (place.partition("/") for place in broken) if folder == "detectors"}


def _read_code(
    folder: Path, read: Callable[[Path], _Code], sources: dict[str, Source], broken: dict[str, ConfigError]
) -> dict[str, _Code]:
    declared = _read(folder, _CODE, read, broken)
    _take_out(declared, {name: _cross_faults(spec, sources, broken) for name, spec in declared.items()}, folder, broken)
    return declared


def _read_flows(project: Path, sources: dict[str, Source], broken: dict[str, ConfigError]) -> dict[str, FlowSpec]:
    folder = project / "flows"
    flows = _read(folder, _CODE, read_flow, broken)
    if not any(place.startswith(f"{folder.name}/") for place in broken):  # a broken one may be what is missing
        _take_out(sources, faults_of_sources(flows, sources, project / "sources"), project / "sources", broken)
    _take_out(flows, {name: _cross_faults(spec, sources, broken) for name, spec in flows.items()}, folder, broken)
    _take_out(flows, faults_of_flows(flows, sources), folder, broken)
    return flows


def _take_out(
    declared: dict[str, Any], faults: Mapping[str, list[Fault]], folder: Path, broken: dict[str, ConfigError]
) -> None:
    for name, found in faults.items():
        if found:
            broken[f"{folder.name}/{name}"] = ConfigError(found)
            del declared[name]


def _read(
    folder: Path, pattern: str, read: Callable[[Path], _Declared], broken: dict[str, ConfigError]
) -> dict[str, _Declared]:
    declared: dict[str, _Declared] = {}
    for path in sorted(folder.glob(pattern)):
        try:
            declared[path.stem] = _unless_same(path, read)
        except ConfigError as error:
            broken[f"{folder.name}/{path.stem}"] = error
    return declared


def _unless_same(path: Path, read: Callable[[Path], _Declared]) -> _Declared:
    """Read `path` unless it is the file that was read last: supervision reads the catalog each second."""
    try:
        # Beside the file of a source may lie files of networks, of which it knows the digest; code may reach others.
        files: list[Path] = sorted(path.parent.glob("*.csv"))
        if path.suffix == ".py":
            files = [*lib_files(path.parent.parent), *lock_files(path.parent.parent)]
        stats = [file.stat() for file in (path, *files)]
        stamp = tuple(
            part for stat in stats for part in (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        )
    except OSError:  # gone meanwhile: `read` says so
        return read(path)
    earlier = _READ.get(path)
    if earlier is not None and earlier[0] == stamp:
        found = earlier[1]
    else:
        try:
            found = read(path)
        except ConfigError as error:
            found = error
        if time.time_ns() - max(stat.st_mtime_ns for stat in stats) > _SETTLED_NS:
            _READ[path] = (stamp, found)
    if isinstance(found, ConfigError):
        raise ConfigError(found.faults)
    return cast(_Declared, found)


def _cross_faults(
    spec: FlowSpec | DetectorSpec | ViewSpec, sources: dict[str, Source], broken: dict[str, ConfigError]
) -> list[Fault]:
    faults = []
    named = [("source", name) for name in spec.sources if not _is_findings(spec, name)]
    named += [("to", spec.to)] if isinstance(spec, FlowSpec) else []
    for key, source in named:
        if source not in sources:
            state = "is broken" if f"sources/{source}" in broken else "does not exist"
            what = f"source '{source}' {state}"
            faults.append(Fault(str(spec.path), what, key=key, nearest=nearest(source, sources)))
    return faults


def _is_findings(spec: FlowSpec | DetectorSpec | ViewSpec, name: str) -> bool:
    return isinstance(spec, DetectorSpec) and name.startswith(FINDINGS_OF)
