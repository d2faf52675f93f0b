"""`tocsin check`: everything that is wrong with what is declared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cases.mutation import faults_of_cases
from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line
from tocsin.cli.project import load_project, load_settings
from tocsin.declare.model.detector import DetectorSpec, Stage
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.view import ViewSpec

if TYPE_CHECKING:
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.settings import Settings
    from tocsin.detect.spark.plan import DetectorPlan
    from tocsin.spark.query_plan import QueryPlan

_Plan = Annotated[bool, typer.Option("--plan", help="Also have Spark plan all that is code; takes some seconds.")]


def check(plan: _Plan = False, json: options.Json = False) -> None:
    """Check all that is declared in the project, and list all faults. Exit code 1 when there is one.

    The files are read, not imported, so this is quick. Runbooks, files of tables and packages must be there. With
    --plan flows, detectors and views are also imported and planned by Spark, as in their jobs: that finds missing
    columns and scores of unknown kind, and shows the mode, and how long findings take. A detector in stage shadow or
    live needs a case that fires and one that is silent (docs/write/testing.md); those in shadow are listed, since only
    an edit of the stage lets them notify people.
    """
    from tocsin.cli.json_shapes import FaultShape

    settings, catalog = open_project()
    others = _faults_besides(settings, catalog)
    faults = [fault for _, error in sorted(catalog.broken.items()) for fault in error.faults] + others
    files = len(catalog.broken) + len({fault.where for fault in others})
    declared_tables = [table for table in catalog.tables.values() if not table.trains]
    well = {"source": len(catalog.sources), "table": len(declared_tables), "flow": len(catalog.flows)}
    well |= {"detector": len(catalog.detectors), "view": len(catalog.views)}
    plans: list[str] = []
    if plan:
        plans, planned, further = _plans(settings, catalog)
        faults += further
        files, well = files + len({fault.where for fault in further}), well | planned
    if json:
        as_json([FaultShape(**asdict(fault)) for fault in faults])
    else:
        for text in [*plans, *_shadows(catalog)]:
            line(text)
        for fault in faults:
            line(str(fault), style="red")
        *first, last = [counted(count, word) for word, count in well.items() if count or word in ("source", "detector")]
        declared = f"{', '.join(first)} and {last}"
        broken = f"{counted(len(faults), 'fault')} in {counted(files, 'file')}; " if faults else ""
        line(f"{broken}{declared} well declared")
    if faults:
        raise typer.Exit(1)


def _faults_besides(settings: Settings, catalog: Catalog) -> list[Fault]:
    """List what is wrong besides the files that cannot be read."""
    from tocsin.ingest.network_ranges import faults_of_networks
    from tocsin.platform.environments import package_faults
    from tocsin.quality.suites.suite_catalog import faults_of_suites

    broken_sources = [name.removeprefix("sources/") for name in catalog.broken if name.startswith("sources/")]
    return [
        *faults_of_suites(settings.project, catalog.sources, broken_sources),
        *_faults_of_settings(settings, catalog),
        *faults_of_cases(catalog.detectors.values()),
        *faults_of_networks(catalog.sources.values()),
        *_faults_of_files(settings.project, catalog),
        *_faults_of_receivers(settings, catalog),
        *package_faults(settings, catalog),
    ]


def _shadows(catalog: Catalog) -> list[str]:
    specs = [spec for spec in catalog.detectors.values() if spec.stage is Stage.SHADOW]
    return [f'{spec.path}: stage "shadow": notifies nobody until you write stage="live" there' for spec in specs]


def _faults_of_files(project: Path, catalog: Catalog) -> list[Fault]:
    named = [(spec.path, "runbook", spec.runbook) for spec in catalog.detectors.values() if spec.stage.runs]
    named = [entry for entry in named if "://" not in entry[2]]
    tables = project / "tables"
    named += [(tables / f"{spec.name}.toml", "file", spec.file) for spec in catalog.tables.values() if spec.file]
    return [
        Fault(str(where), f"there is no file {name} in the project {project.resolve()}", key=key)
        for where, key, name in named
        if not (project / name).is_file()
    ]


def _faults_of_receivers(settings: Settings, catalog: Catalog) -> list[Fault]:
    from tocsin.declare.receivers import check_known
    from tocsin.declare.routes import faults_of_receivers, read_routes
    from tocsin.declare.settings import PROJECT_FILE

    faults = []
    own = (PROJECT_FILE, "alerts.urgent_recipients")
    named = [(*own, recipient) for recipient in settings.alerts.urgent_recipients]
    named += [(PROJECT_FILE, "alerts.heartbeat", settings.alerts.heartbeat)] if settings.alerts.heartbeat else []
    for folder in ("sources", "tables", "flows", "detectors", "views"):
        form = "toml" if folder in ("sources", "tables") else "py"
        named += [(f"{folder}/{name}.{form}", "owner", spec.owner) for name, spec in getattr(catalog, folder).items()]
    for where, key, recipient in named:
        try:
            check_known(recipient, settings.receivers)
        except ValueError as error:
            faults.append(Fault(str(settings.project / where), str(error), key=key))
    try:
        return faults + faults_of_receivers(read_routes(settings.project), settings)
    except ConfigError:  # among the faults of the catalog
        return faults


@dataclass(frozen=True)
class Planned:
    """The plans that Spark made of all code, by name, and what it refuses."""

    detectors: dict[str, DetectorPlan]
    views: dict[str, QueryPlan]
    faults: list[Fault]


def plan_all(settings: Settings, catalog: Catalog) -> Planned:
    """Have Spark plan all detectors, flows, views and queries of tables of `catalog`."""
    from tocsin.detect.spark.plan import detector_plans
    from tocsin.history.spark.table_versions import query_faults
    from tocsin.ingest.flows.spark.flow_plan import flow_faults
    from tocsin.spark.session import planning_session
    from tocsin.views.spark.view_plan import view_plans

    with planning_session(settings) as spark:
        detectors, faults = detector_plans(spark, settings.project, catalog)
        views, further = view_plans(spark, catalog)
        of_tables = query_faults(spark, settings, catalog)
        return Planned(detectors, views, [*of_tables, *flow_faults(spark, catalog), *faults, *further])


def _plans(settings: Settings, catalog: Catalog) -> tuple[list[str], dict[str, int], list[Fault]]:
    from tocsin.platform.environments import READERS, is_elsewhere, without_elsewhere

    found = plan_all(settings, catalog)

    def latency(spec: DetectorSpec | ViewSpec, plan: QueryPlan) -> str:
        lateness = max(source.lateness for source in catalog.sources_of(spec))
        moment = "the event" if spec.window is None else "the end of the window"
        seconds = 4 if getattr(spec, "model", None) else 2  # 4.3 to 4.8 measured: a model is joined, and Python judges
        return plan.latency(lateness, spec.latency or settings.spark.latency, moment, seconds)

    specs = [spec for folder in READERS for spec in getattr(catalog, folder).values()]
    lines = [
        f"{spec.path}: not planned: it runs in environment {spec.environment}"
        for spec in specs
        if is_elsewhere(spec.environment)
    ]
    lines += [
        f"{name}: {plan.mode} ({plan.reason}); the score is {plan.score.kind} ({plan.score.why}); "
        f"findings come {latency(catalog.detector(name), plan)}"
        for name, plan in found.detectors.items()
    ]
    lines += [
        f"view {name}: {plan.mode} ({plan.reason}); rows change {latency(catalog.view(name), plan)}"
        for name, plan in found.views.items()
    ]
    broken = {fault.where for fault in found.faults}
    well = sum(str(spec.path) not in broken for spec in without_elsewhere(catalog.flows).values())
    tables = sum(not table.trains for table in catalog.tables.values()) - sum(
        "tables" in Path(where).parent.name for where in broken
    )
    return (
        lines,
        {"table": tables, "flow": well, "detector": len(found.detectors), "view": len(found.views)},
        found.faults,
    )


def open_project() -> tuple[Settings, Catalog]:
    """Do as `load_project`; ConfigError when the folder is no project at all."""
    project = load_settings().project
    if not (project / "sources").is_dir() and not (project / "detectors").is_dir():
        what = "holds neither sources/ nor detectors/; go to the project's folder, or name it in TOCSIN_PROJECT"
        raise ConfigError.one(project, what)
    return load_project()


def _faults_of_settings(settings: Settings, catalog: Catalog) -> list[Fault]:
    from tocsin.declare.settings import PROJECT_FILE

    where, found = str(settings.project / PROJECT_FILE), []
    known = {*catalog.sources, *(name.removeprefix("sources/") for name in catalog.broken)}
    for name in sorted(settings.drain.only.keys() - known):
        what = f"'{name}' is no source, so no line is left out by it"
        found.append(Fault(where, what, key="drain.only", nearest=nearest(name, known)))
    longest = max(catalog.sources.values(), key=lambda source: source.history_days, default=None)
    if longest is not None and longest.history_days > settings.alerts.history_days:
        # A finding that goes before its day would be missing in the eyes of parity.
        what = f"must be at least {longest.history_days}, the history_days of source '{longest.name}', not "
        what += f"{settings.alerts.history_days}: `tocsin parity` needs the findings of every day that is kept"
        found.append(Fault(where, what, key="alerts.history_days"))
    return found
