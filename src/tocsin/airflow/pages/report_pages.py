"""The reports of gates, as pages: what was observed on a day, and what is allowed."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from fastapi import FastAPI, HTTPException, Response, status
from fastapi.responses import FileResponse, HTMLResponse

from tocsin.airflow.pages.access import User, rights
from tocsin.declare.model.names import backfill_dag, history_dag
from tocsin.declare.settings import Settings

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
_NONE = "<!doctype html><title>Quality</title><p>No day has been judged yet.</p>"


def add_reports(app: FastAPI, settings: Settings) -> None:
    """Serve the reports below the state folder to those who may see the DAG whose gate has written them."""
    folder = settings.state / _FOLDER

    @app.get("/quality/index.html")
    def index(user: User) -> Response:
        """The report on all days; for those who may see every DAG of which it tells."""
        dags = {_dag_of(path.name) for path in folder.glob("*") if path.is_dir()}
        if dags - rights(user, dags).seen:
            raise HTTPException(status.HTTP_403_FORBIDDEN, "It names DAGs that you may not see")
        if not (folder / _INDEX).exists():
            return HTMLResponse(_NONE, headers=_HEADERS)
        return FileResponse(folder / _INDEX, media_type="text/html", headers=_HEADERS)

    @app.get("/quality/{subject}/{day}/{name}")
    def report(user: User, subject: str, day: date, name: str) -> Response:
        """One report, or the same as JSON."""
        found = _NAME.fullmatch(name)
        if found is None or _SUBJECT.fullmatch(subject) is None:
            raise HTTPException(status.HTTP_404_NOT_FOUND)
        dag = _dag_of(subject)
        if dag not in rights(user, [dag]).seen:
            raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not see {dag}")
        path: Path = folder / subject / str(day) / name
        if not path.is_file():
            raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such report, or it has expired")
        return FileResponse(path, media_type=_TYPES[found[1]], headers=_HEADERS)


def _dag_of(subject: str) -> str:
    """The DAG whose gate judges `subject`: a source, or the findings of a detector."""
    if subject.startswith(_OF_FINDINGS):
        return backfill_dag(subject.removeprefix(_OF_FINDINGS))
    return history_dag(subject)
