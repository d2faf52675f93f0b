"""The application behind the pages, mounted into Airflow's API server. Each route only reads; Airflow's API acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import Depends, FastAPI, HTTPException, Request, Response, status
from fastapi.responses import FileResponse

from tocsin.airflow.pages.access import LoggedIn, Rights, User, may_see, may_see_log, rights, switches
from tocsin.airflow.pages.report_pages import add_reports
from tocsin.declare.settings import Settings
from tocsin.web.page_data import Installation, tail_of
from tocsin.web.page_shapes import JobList, JobPage, JobRow, LogTail, Parity

_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
# Nothing from elsewhere, nothing inline, framed by Airflow alone. Everything is asked for anew: a page must not outlive
# a login, and never mix two versions of itself.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def pages(settings: Settings) -> FastAPI:
    """The application for one installation."""
    app = FastAPI(title="Tocsin", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(may_see)])
    app.add_middleware(LoggedIn)
    app.middleware("http")(_add_headers)
    installation = Installation(settings)
    installation.prepare()
    _add_files(app)
    _add_data(app, installation)
    add_reports(app, settings)
    return app


async def _add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _add_files(app: FastAPI) -> None:
    files = {path.name: path for path in _STATIC.iterdir() if path.suffix in _TYPES}

    def file(name: str) -> FileResponse:
        if name not in files:
            raise HTTPException(status.HTTP_404_NOT_FOUND)
        return FileResponse(files[name], media_type=_TYPES[files[name].suffix])

    @app.get("/detectors")
    def detectors() -> FileResponse:
        """The page of all jobs."""
        return file("detectors.html")

    @app.get("/job")
    def job() -> FileResponse:
        """The page of the jobs of the DAG that the query names."""
        return file("job.html")

    @app.get("/static/{name}")
    def static(name: str) -> FileResponse:
        """A part of a page; only those that are there, so no name can lead elsewhere."""
        return file(name)


def _add_data(app: FastAPI, installation: Installation) -> None:
    @app.get("/api/jobs")
    def jobs(user: User) -> JobList:
        """All jobs whose DAGs the user may see."""
        dags = installation.dags()
        listed = installation.jobs(switches(dags))
        own = rights(user, dags)
        return listed.model_copy(update={"rows": [_for(row, own) for row in listed.rows if row.dag in own.seen]})

    @app.get("/api/job")
    def job(user: User, dag_id: str) -> JobPage:
        """The jobs of one DAG, in detail."""
        page = installation.jobs_in_detail(dag_id, switches([dag_id]))
        own = rights(user, [dag_id, *(place.dag for place in page.beside)])
        jobs = [details.model_copy(update={"row": _for(details.row, own)}) for details in page.jobs]
        beside = [place for place in page.beside if place.dag in own.seen]
        return page.model_copy(update={"jobs": jobs, "beside": beside})

    @app.get("/api/parity")
    def parity(dag_id: str) -> Parity:
        """Compare the findings of stream and backfill for the detector of one DAG."""
        return installation.parity(dag_id)

    @app.get("/api/log", dependencies=[Depends(may_see_log)])
    def log(dag_id: str, job: str) -> LogTail:
        """The end of the log of a job; 404 unless it is one of the jobs of the DAG."""
        if job not in installation.jobs_of(dag_id):
            raise HTTPException(status.HTTP_404_NOT_FOUND, "This DAG handles no such job")
        return tail_of(installation.settings.log(job))


def _for(row: JobRow, own: Rights) -> JobRow:
    switched = row.dag in own.switched
    may = {"may_switch": row.may_switch and switched, "may_restart": row.may_restart and switched and own.runs}
    return row.model_copy(update=may)
