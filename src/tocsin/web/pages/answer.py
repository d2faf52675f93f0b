"""The page behind a signed link in a mail: says what the link does, and does it once its button is pressed.

It needs no login: the link is signed for its recipient. A GET changes nothing, so a scanner of mails answers nothing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import Connection, select
from starlette.concurrency import run_in_threadpool

from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.links import SILENCED_FOR, Answer, LinkAction, LinkRefused
from tocsin.alerts.notify.receivers import pagerduty
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.queries import alert_details
from tocsin.alerts.store.schema import alerts
from tocsin.web.pages.alert import matcher_of
from tocsin.web.pages.alerts import muting
from tocsin.web.site import Here, Site

WORDS = {
    LinkAction.ACKNOWLEDGE: ("Acknowledge for 4 hours", "acknowledged"),
    LinkAction.SILENCE_HOUR: ("Silence for 1 hour", "silenced"),
    LinkAction.FALSE_ALARM: ("Resolve as a false alarm", "resolved"),
}
_WHY = "by a link in a mail"
routes = APIRouter()


@routes.get("/answer/{token}")
def ask(request: Request, site: Here, token: str) -> Response:
    """Say what the link does."""
    return _page(request, site, token, act=False)


@routes.post("/answer/{token}")
def act(request: Request, site: Here, token: str) -> Response:
    """Do it, unless it is done already."""
    return _page(request, site, token, act=True)


def _page(request: Request, site: Site, token: str, *, act: bool) -> Response:
    now = datetime.now(UTC)
    try:
        answer = site.links.read(token, now)
    except LinkRefused as error:
        return site.message(request, str(error), 410)
    begin = site.write if act else site.read
    with begin() as connection:
        if answer.action is not LinkAction.FALSE_ALARM:  # a verdict is about what the mail was about
            answer = replace(answer, alert=actions.find_continuing(connection, answer.alert))
        if act:  # of two people who act at once the second waits here, and then sees what the first has done
            connection.execute(select(alerts.c.id).where(alerts.c.id == answer.alert).with_for_update())
            now = datetime.now(UTC)  # after it has waited
        details = alert_details(connection, answer.alert)
        if details is None:
            return site.message(request, "This alert is so old that it was removed; there is nothing to do.", 410)
        before = _done(connection, details, answer, now)
        if act and not before:
            _act(connection, details, answer, now)
            details = alert_details(connection, answer.alert) or details
    facts = {"details": details, "answer": answer, "words": WORDS[answer.action], "before": before, "acted": act}
    return site.page(request, "answer.html", **facts)


def _done(connection: Connection, details: AlertDetails, answer: Answer, now: datetime) -> str:
    """Say by whom and when that was done already, or what makes it needless; empty if it is to be done."""
    alert = details.alert
    if answer.action is LinkAction.SILENCE_HOUR and alert.state != "resolved":
        silence = muting(actions.list_active(connection, now), alert)
        return f"silenced by {silence.owner} until {silence.ends_at:%Y-%m-%d %H:%M} UTC" if silence else ""
    if alert.state == "open" or (answer.action is LinkAction.FALSE_ALARM and not alert.verdict):
        return ""
    last = next((step for step in reversed(details.history) if step.state == alert.state), None)
    who = f" by {last.who} at {last.at:%Y-%m-%d %H:%M} UTC ({last.why})" if last else ""
    return f"{alert.state}{who}"


def _act(connection: Connection, details: AlertDetails, answer: Answer, now: datetime) -> None:
    by, alert = Actor(answer.recipient, now, _WHY), details.alert
    if answer.action is LinkAction.ACKNOWLEDGE:
        actions.acknowledge(connection, [alert.id], by)
    elif answer.action is LinkAction.SILENCE_HOUR:
        actions.silence(connection, matcher_of(alert), by, now + SILENCED_FOR)
    else:
        actions.resolve(connection, [alert.id], by, Verdict.FALSE)


@routes.post("/receivers/pagerduty")
async def take_pagerduty(request: Request, site: Here) -> Response:
    """Answer alerts as their incidents were: 204, also if there is nothing to do; 403 if PagerDuty has not signed it.

    An error of 5xx lets PagerDuty send it again.
    """
    await run_in_threadpool(_act_by_webhook, site, dict(request.headers), await request.body())
    return Response(status_code=204)


def _act_by_webhook(site: Site, headers: dict[str, str], body: bytes) -> None:
    try:
        answers = pagerduty.read_any_webhook(site.settings, headers, body)
    except pagerduty.WebhookRefused as error:
        raise HTTPException(403, str(error)) from error
    if answers:
        with site.write() as connection:
            pagerduty.act(connection, answers, datetime.now(UTC))
