"""The reports of gates, as pages: what was observed on a day, and what is allowed."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import FileResponse

from tocsin.declare.model.names import backfill_dag, history_dag
from tocsin.web.access import Visitor
from tocsin.web.site import Here

_FOLDER, _INDEX = "quality", "index.html"
_OF_FINDINGS = "findings."
_SUBJECT = re.compile(r"(?:findings\.)?[A-Za-z0-9_-]+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*\.(html|json)")
_TYPES = {"html": "text/html", "json": "application/json"}
# They are our own rendering, without scripts: their style is within them, and nothing is loaded.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
}
routes = APIRouter()


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
    return FileResponse(path, media_type=_TYPES[found[1]], headers=_HEADERS)


def _dag_of(subject: str) -> str:
    """The DAG whose gate judges `subject`: a source, or the findings of a detector."""
    if subject.startswith(_OF_FINDINGS):
        return backfill_dag(subject.removeprefix(_OF_FINDINGS))
    return history_dag(subject)
