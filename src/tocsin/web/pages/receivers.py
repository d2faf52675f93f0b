"""Where receivers of alerts report what people have answered there; each report is signed by its receiver."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from tocsin.alerts.notify.receivers import pagerduty
from tocsin.web.site import Here, Site

routes = APIRouter()


@routes.post("/receivers/pagerduty")
async def take_pagerduty(request: Request, site: Here) -> Response:
    """Answer alerts as their incidents were: 204, also if there is nothing to do; 403 if PagerDuty has not signed it.

    An error of 5xx lets PagerDuty send it again.
    """
    await run_in_threadpool(_act, site, dict(request.headers), await request.body())
    return Response(status_code=204)


def _act(site: Site, headers: dict[str, str], body: bytes) -> None:
    try:
        answers = pagerduty.read_any_webhook(site.settings, headers, body)
    except pagerduty.WebhookRefused as error:
        raise HTTPException(403, str(error)) from error
    if answers:
        with site.write() as connection:
            pagerduty.act(connection, answers, datetime.now(UTC))
