"""What each detector brings: alerts a day, how many were right, what its job does and takes; and runbooks."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from markdown_it import MarkdownIt
from markupsafe import Markup

from tocsin.alerts.store.queries import COUNTED_DAYS, AlertCounts, count_alerts
from tocsin.declare.model.detector_guide import link_of
from tocsin.declare.model.names import DETECTOR
from tocsin.web.access import Visitor
from tocsin.web.pages.alerts import seen_detectors
from tocsin.web.site import Here

routes = APIRouter()


@routes.get("/detectors")
def show(request: Request, site: Here, user: Visitor) -> Response:
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
