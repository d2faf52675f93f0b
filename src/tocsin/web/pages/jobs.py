"""The pages of the jobs, which only read: Airflow's API acts. And the files that all pages load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import FileResponse, HTMLResponse

from tocsin.alerts.actions import Silence
from tocsin.declare.model.names import DETECTOR
from tocsin.web.access import Rights, User, Visitor
from tocsin.web.job_rows import GROUPS, JobRow
from tocsin.web.page_data import JobList, LogTail, tail_of
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
