"""The pages of the jobs, which only read: Airflow's API acts. And the files that all pages load."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from markdown_it import MarkdownIt
from markupsafe import Markup

from tocsin.alerts.actions import Silence
from tocsin.alerts.store.queries import COUNTED_DAYS, AlertCounts, count_alerts
from tocsin.declare.model.detector_guide import link_of
from tocsin.declare.model.names import DETECTOR, backfill_dag, history_dag
from tocsin.web.access import Rights, User, Visitor
from tocsin.web.job_rows import GROUPS, JobRow
from tocsin.web.page_data import JobList, LogTail, tail_of
from tocsin.web.pages.alerts import seen_detectors
from tocsin.web.site import Here, Site

_STATIC = Path(__file__).parents[1] / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: path for path in _STATIC.iterdir() if path.suffix in _TYPES}
_PATIENCE_SECONDS = 1.0
routes = APIRouter()


@routes.get("/static/{name}")
def static(name: str) -> FileResponse:
    """A part of a page; only those that are there, so no name can lead elsewhere."""
    if name not in _FILES:
        raise HTTPException(404)
    return FileResponse(_FILES[name], media_type=_TYPES[_FILES[name].suffix])


@routes.get("/jobs")
def jobs(request: Request, site: Here, user: Visitor, find: str = "") -> HTMLResponse:
    """The page of all jobs whose DAGs the user may see; those in which all words of `find` occur."""
    listed, words = _seen(site, user), find.lower().split()
    texts = {row.job: f"{row.job} {row.stage} {row.health} {row.title} {row.mode}".lower() for row in listed.rows}
    shown = [row for row in listed.rows if all(word in texts[row.job] for word in words)]
    facts = {"listed": listed, "shown": shown, "groups": GROUPS, "find": find, "mutes_all": _mutes_all(site)}
    return site.page(request, "jobs.html", **facts)


@dataclass(frozen=True)
class Choice:
    """The query of a page about the jobs of `dag_id`: one of them, how many crashes, and what its log is searched for.

    Without `job` it is the first.
    """

    dag_id: str
    job: str = ""
    find: str = ""
    crashes: Annotated[int, Query(ge=1)] = 5


@routes.get("/job")
def job(request: Request, site: Here, user: Visitor, choice: Annotated[Choice, Depends()]) -> HTMLResponse:
    """The page of one job among those of its DAG; 404 if the DAG handles no such job."""
    listed, known = _seen(site, user), site.installation
    own = [row for row in listed.rows if row.dag == choice.dag_id]
    row = next((row for row in own if choice.job in ("", row.job)), None)
    if row is None and choice.job:
        raise HTTPException(404, "This DAG handles no such job")
    facts: dict[str, Any] = {"listed": listed, "jobs": own, "row": row, "find": choice.find, "few": choice.crashes}
    facts["mutes_all"] = _mutes_all(site)
    if row is None:
        beside = known.beside(choice.dag_id)
        facts["beside"] = [row for row in listed.rows if row.job in beside]
    else:
        facts |= {"crashes": known.crashes(row.job), "declared": known.declaration(row.job)}
        facts["parity"] = known.parity(row.name) if row.kind == DETECTOR else None
        facts["models"] = known.models(row.name) if row.kind == DETECTOR else None
        facts["log"] = _log(request, site, user, row.job, choice.find)
    return site.page(request, "job.html", **facts)


def _log(request: Request, site: Site, user: User, job: str, find: str) -> LogTail | None:
    """Read the end of a log; None if `user` may not see it."""
    try:
        site.access.check(request, user, logs=True)
    except HTTPException:
        return None
    return tail_of(site.settings.log(job), find)


def _mutes_all(site: Site) -> list[Silence]:
    """Return the silences of everything: these pages go on while the alerts DB is away, or hangs."""
    return site.mutes_all.known(_PATIENCE_SECONDS).value or []


def _seen(site: Site, user: User) -> JobList:
    dags = site.installation.dags()
    listed = site.installation.jobs(site.access.switches(dags))
    own = site.access.rights(user, dags)
    return replace(listed, rows=[_for(row, own) for row in listed.rows if row.dag in own.seen])


def _for(row: JobRow, own: Rights) -> JobRow:
    switched = row.dag in own.switched
    may = {"may_switch": row.may_switch and switched, "may_restart": row.may_restart and switched and own.runs}
    return row.model_copy(update=may)


@routes.get("/detectors")
def show_detectors(request: Request, site: Here, user: Visitor) -> Response:
    """The page of all detectors that are declared or have alerts."""
    with site.read():  # says so if there is no DB yet
        counted = count_alerts(site.database)
    rows = {row.name: row for row in site.installation.jobs({}).rows if row.kind == DETECTOR}
    specs = site.installation.detectors()
    names = sorted(seen_detectors(site, user, counted.keys() | rows.keys()))
    lines = [(name, counted.get(name, AlertCounts()), rows.get(name), specs.get(name)) for name in names]
    return site.page(request, "detectors.html", lines=lines, days=COUNTED_DAYS)


@routes.get("/runbooks/{detector}")
def runbook(request: Request, site: Here, user: Visitor, detector: str) -> Response:
    """The runbook of a detector: rendered if it is a file of the project, else where it is."""
    spec = site.installation.detectors().get(detector)
    if spec is None or not seen_detectors(site, user, {detector}):
        raise HTTPException(404, f"There is no detector {detector} with a file that can be read.")
    if link := link_of(spec.runbook):
        return RedirectResponse(link)
    try:
        text = (site.settings.project / spec.runbook.partition("#")[0]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HTTPException(404, f"{spec.runbook}, the runbook of {detector}, cannot be read: {error}") from error
    return site.page(request, "runbook.html", detector=detector, spec=spec, text=Markup(_markdown().render(text)))


@cache
def _markdown() -> MarkdownIt:
    # Without HTML of its own: whoever writes a runbook must not script the page of who reads it.
    return MarkdownIt("commonmark", {"html": False}).enable("table")


_FOLDER, _INDEX = "quality", "index.html"
_OF_FINDINGS = "findings."
_SUBJECT = re.compile(r"(?:findings\.)?[A-Za-z0-9_-]+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*\.(html|json)")
_REPORT_TYPES = {"html": "text/html", "json": "application/json"}
# They are our own rendering, without scripts: their style is within them, and nothing is loaded.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
}


@routes.get("/quality/index.html")
def index(request: Request, user: Visitor, site: Here) -> Response:
    """The report on all days; for those who may see every DAG of which it tells."""
    folder = site.settings.state / _FOLDER
    dags = {_dag_of(path.name) for path in folder.glob("*") if path.is_dir()}
    if dags - site.access.rights(user, dags).seen:
        raise HTTPException(403, "It names DAGs that you may not see")
    if not (folder / _INDEX).exists():
        return site.message(request, "No day has been judged yet.")
    return FileResponse(folder / _INDEX, media_type="text/html", headers=_HEADERS)


@routes.get("/quality/{subject}/{day}/{name}")
def report(user: Visitor, site: Here, subject: str, day: date, name: str) -> Response:
    """One report, or the same as JSON."""
    found = _NAME.fullmatch(name)
    if found is None or _SUBJECT.fullmatch(subject) is None:
        raise HTTPException(404)
    dag = _dag_of(subject)
    if dag not in site.access.rights(user, [dag]).seen:
        raise HTTPException(403, f"You may not see {dag}")
    path: Path = site.settings.state / _FOLDER / subject / str(day) / name
    if not path.is_file():
        raise HTTPException(404, "There is no such report, or it has expired")
    return FileResponse(path, media_type=_REPORT_TYPES[found[1]], headers=_HEADERS)


def _dag_of(subject: str) -> str:
    """The DAG whose gate judges `subject`: a source, or the findings of a detector."""
    if subject.startswith(_OF_FINDINGS):
        return backfill_dag(subject.removeprefix(_OF_FINDINGS))
    return history_dag(subject)
