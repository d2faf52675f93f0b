"""The pages of the jobs, which only read: Airflow's API acts. And the files that all pages load."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse

from tocsin.web.access import Rights, Visitor
from tocsin.web.page_data import tail_of
from tocsin.web.page_shapes import JobList, JobPage, JobRow, LogTail, Parity
from tocsin.web.site import Here

_STATIC = Path(__file__).parents[1] / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: path for path in _STATIC.iterdir() if path.suffix in _TYPES}
routes = APIRouter()


@routes.get("/static/{name}")
def static(name: str) -> FileResponse:
    """A part of a page; only those that are there, so no name can lead elsewhere."""
    if name not in _FILES:
        raise HTTPException(404)
    return FileResponse(_FILES[name], media_type=_TYPES[_FILES[name].suffix])


@routes.get("/jobs")
def jobs(request: Request, site: Here) -> HTMLResponse:
    """The page of all jobs."""
    return site.page(request, "jobs.html")


@routes.get("/job")
def job(request: Request, site: Here) -> HTMLResponse:
    """The page of the jobs of the DAG that the query names."""
    return site.page(request, "job.html")


@routes.get("/api/jobs")
def list_jobs(user: Visitor, site: Here) -> JobList:
    """All jobs whose DAGs the user may see."""
    dags = site.installation.dags()
    listed = site.installation.jobs(site.access.switches(dags))
    own = site.access.rights(user, dags)
    return listed.model_copy(update={"rows": [_for(row, own) for row in listed.rows if row.dag in own.seen]})


@routes.get("/api/job")
def show_job(user: Visitor, site: Here, dag_id: str) -> JobPage:
    """The jobs of one DAG, in detail."""
    page = site.installation.jobs_in_detail(dag_id, site.access.switches([dag_id]))
    own = site.access.rights(user, [dag_id, *(place.dag for place in page.beside)])
    jobs = [details.model_copy(update={"row": _for(details.row, own)}) for details in page.jobs]
    beside = [place for place in page.beside if place.dag in own.seen]
    return page.model_copy(update={"jobs": jobs, "beside": beside})


@routes.get("/api/parity")
def parity(site: Here, dag_id: str) -> Parity:
    """Compare the findings of stream and backfill for the detector of one DAG."""
    return site.installation.parity(dag_id)


@routes.get("/api/log")
def log(request: Request, user: Visitor, site: Here, dag_id: str, job: str, text: str = "") -> LogTail:  # noqa: PLR0913, PLR0917 - each has its name in the query
    """The end of the log of a job, or the last lines with `text`; 404 unless it is one of the jobs of the DAG."""
    site.access.check(request, user, logs=True)
    if job not in site.installation.jobs_of(dag_id):
        raise HTTPException(404, "This DAG handles no such job")
    return tail_of(site.settings.log(job), text)


def _for(row: JobRow, own: Rights) -> JobRow:
    switched = row.dag in own.switched
    may = {"may_switch": row.may_switch and switched, "may_restart": row.may_restart and switched and own.runs}
    return row.model_copy(update=may)
