"""Messages as events of PagerDuty's Events API v2, and its webhooks (v3) as answers to alerts."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection

from tocsin.alerts import actions
from tocsin.alerts.actions import ActionResult, Actor
from tocsin.alerts.alert_states import Action, AlertState
from tocsin.alerts.notify.channel import AlertFacts, Delivery, Message, Result, find_by_key
from tocsin.alerts.notify.mail.letter import named
from tocsin.alerts.notify.receivers.named_target import NamedTargetChannel
from tocsin.declare.blocks.receiver_settings import PagerDutyTarget
from tocsin.declare.model.sizes import number, printable, score_text
from tocsin.declare.setting_blocks import secret_in
from tocsin.declare.settings import Settings

_LONGEST_SUMMARY, _LONGEST_FIELD, _LARGEST_EVENT = 1024, 255, 500_000
"""PagerDuty takes 1,024 characters of summary, 255 of a key, and 512 KB in all."""
_ENDS = (Action.RESOLVED, Action.QUIET, Action.RETURNED)
_PAGES = ("alert", "runbook", "job")
_SIGNATURE = "x-pagerduty-signature"


class PagerDutyChannel(NamedTargetChannel[PagerDutyTarget]):
    """Sends an event for each alert that a message shows: trigger, acknowledge or resolve, with the key of the alert.

    An event that is sent again changes nothing in PagerDuty.
    """

    secret = "routing_key_file"

    def send_to(self, target: PagerDutyTarget, secret: str, message: Message) -> Delivery:
        """See `HttpPost.send`."""
        for event in events_of(message):
            delivery = self._http.send(target.url, _fitting(event | {"routing_key": secret}), {})
            if delivery.result is not Result.SENT:
                break
        return delivery


def events_of(message: Message) -> list[dict[str, Any]]:
    """Make the events of a message, without their routing key; one at least.

    Of a message about more alerts than it shows, the first event says how many there are: an incident of their own
    would end with none of them.
    """
    hidden = message.alerts - len(message.several)
    each = [
        message.model_copy(update=_as_single(facts, message.urgent, 0 if number else hidden))
        for number, facts in enumerate(message.several)
    ]
    return [event_of(single) for single in each or [message]]


def _as_single(facts: AlertFacts, urgent: bool, hidden: int) -> dict[str, Any]:
    subject = f"{f'[{hidden:,} more alerts] ' if hidden else ''}{named(facts.entity)}: "
    score = score_text(facts.score, at_least=facts.at_least, limit=facts.limit)
    subject += f"{score} (limit {number(facts.limit)}) - {facts.title}"
    return {"facts": facts, "subject": subject, "urgent": urgent and facts.level == "urgent"}


def event_of(message: Message) -> dict[str, Any]:
    """Make the event of a message, without its routing key."""
    facts = message.facts
    payload: dict[str, Any] = {
        "summary": printable(message.subject)[:_LONGEST_SUMMARY],
        "severity": "critical" if message.urgent else "warning",
        "source": "tocsin",
        "timestamp": message.date.isoformat(),
    }
    if facts is None:
        key = hashlib.sha256(message.id.encode()).hexdigest()
        payload["custom_details"] = {"text": message.text[: _LARGEST_EVENT // 8]}
        return {"event_action": "trigger", "dedup_key": key, "client": "Tocsin", "payload": payload}
    payload |= {"source": named(facts.entity)[:_LONGEST_FIELD], "component": facts.detector}
    payload["custom_details"] = facts.model_dump(mode="json", exclude={"links"})
    # Not those that answer in the name of this receiver: an incident has its own buttons, and many readers.
    links = [{"href": facts.links[page], "text": page} for page in _PAGES if page in facts.links]
    event = {"event_action": _action(facts), "dedup_key": facts.key, "client": "Tocsin", "links": links}
    return event | {"payload": payload} | ({"client_url": facts.links["alert"]} if "alert" in facts.links else {})


def _action(facts: AlertFacts) -> str:
    # Of what was over before its message left, such as a line of a summary, nothing would end an incident.
    if facts.happened in _ENDS or facts.state == AlertState.RESOLVED:
        return "resolve"
    return "acknowledge" if facts.happened is Action.ACKNOWLEDGED else "trigger"


def _fitting(event: dict[str, Any]) -> bytes:
    details = event["payload"]["custom_details"]
    for cut in ((), ("gathered", "evidence"), ("gathered", "evidence", "context"), tuple(details)):
        shorter = {name: value for name, value in details.items() if name not in cut}
        shorter |= {"cut_for_length": list(cut)} if cut else {}
        body = json.dumps(event | {"payload": event["payload"] | {"custom_details": shorter}}).encode()
        if len(body) <= _LARGEST_EVENT:
            break
    return body


class WebhookRefused(ValueError):
    """A webhook that PagerDuty has not signed with a secret of ours, or that cannot be read."""


class Answered(NamedTuple):
    """What a person has done to an incident: `action` is "acknowledge" or "resolve"."""

    key: str
    action: str
    who: str


def read_webhook(headers: Mapping[str, str], body: bytes, secret: str) -> list[Answered]:
    """Read the answers in a webhook of PagerDuty (v3): none, or one. What no person has done is left out.

    WebhookRefused if it is not signed with `secret`; answer 403, so that it is not sent again.
    """
    signed = ",".join(value for name, value in headers.items() if name.lower() == _SIGNATURE)
    own = "v1=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    given = [part.strip() for part in signed.split(",")]
    if not secret or not any(hmac.compare_digest(own.encode(), part.encode()) for part in given):
        raise WebhookRefused(f"{_SIGNATURE} holds no signature with the secret of this webhook")
    try:
        event = json.loads(body)["event"]
        action = {"incident.acknowledged": "acknowledge", "incident.resolved": "resolve"}.get(event["event_type"])
        agent = event.get("agent") or {}
        # Our own events come back with an integration as their agent.
        if action is None or not str(agent.get("type", "")).startswith("user"):
            return []
        return [Answered(str(event["data"]["incident_key"]), action, str(agent.get("summary") or "somebody"))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WebhookRefused(f"it is no webhook of version 3: {error!r}") from error


def read_any_webhook(settings: Settings, headers: Mapping[str, str], body: bytes) -> list[Answered]:
    """Read the answers in a webhook that is signed with the secret of one of the receivers.

    WebhookRefused as of `read_webhook`, also if none has a `webhook_secret_file`. ConfigError if that cannot be read.
    """
    targets: dict[str, PagerDutyTarget] = settings.receivers.get("pagerduty", {})
    refused = WebhookRefused("no block [receivers.pagerduty.NAME] has a webhook_secret_file")
    for name, target in targets.items():
        if target.webhook_secret_file is not None:
            key = f"receivers.pagerduty.{name}.webhook_secret_file"
            try:
                return read_webhook(headers, body, secret_in(target.webhook_secret_file, key))
            except WebhookRefused as error:
                refused = error
    raise refused


def act(connection: Connection, answers: Iterable[Answered], now: datetime) -> list[ActionResult]:
    """Do to alerts what was done to their incidents; nothing for incidents of other alerts than ours."""
    done: list[ActionResult] = []
    for answer in answers:
        alert = find_by_key(connection, answer.key)
        by = Actor(answer.who[: actions.LONGEST_TEXT], now, "in PagerDuty")
        if alert is not None and answer.action == "acknowledge":
            done += actions.acknowledge(connection, [alert], by)
        elif alert is not None:
            done += actions.resolve(connection, [alert], by, None)
    return done
