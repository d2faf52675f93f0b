"""Compose messages from templates: a text that says everything, and HTML that does so too.

Everything passes `printable` and, in HTML, Jinja's escaping; `plain` cuts what came from logs or a detector.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.notify.alert_facts import AlertFacts
from tocsin.alerts.notify.channel import PICTURE, Message
from tocsin.alerts.notify.mail import chart, plain_text
from tocsin.alerts.store.alert_rows import Alert, AlertDetails, Notification, alert_parts, message_id
from tocsin.declare.model.finding import canonical_entity
from tocsin.declare.model.finding_text import number, score_text
from tocsin.declare.model.sizes import printable

_log = structlog.get_logger()
_loader = PackageLoader("tocsin.alerts.notify.mail")
_options: dict[str, Any] = {
    "undefined": StrictUndefined,
    "trim_blocks": True,
    "lstrip_blocks": True,
    "finalize": lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
}
_html = Environment(loader=_loader, autoescape=True, **_options)
# Plain text has no markup that could be escaped.
_text = Environment(loader=_loader, autoescape=False, keep_trailing_newline=True, **_options)
SUMMARY_LINES = 50
_OTHER_WINDOWS = 8


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Address of a message: all that it needs besides its content; see `Message`."""

    recipient: str
    message_id: str
    date: datetime


@dataclass(frozen=True, kw_only=True)
class Notice:
    """News for an owner about a job or a run: plain text, whose hidden characters are escaped on the way.

    Attributes:
        commands: to be pasted into a shell.
        days: of each day that is not published its cells, and the address of its report.
        output, output_of: lines of a log or an error, and where they come from.
        links: what else to open, as words and address.
    """

    subject: str
    paragraphs: Sequence[str] = ()
    commands: Sequence[str] = ()
    days: Sequence[tuple[tuple[str, ...], str]] = ()
    output: Sequence[str] = ()
    output_of: str = ""
    links: Sequence[tuple[str, str]] = ()


def warm_up() -> None:
    """Load what drawing needs, so that the first mail does not wait for it."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401  # loading it is the purpose


def alert_mail(details: AlertDetails, notification: Notification, envelope: Envelope) -> Message:
    """Compose an `urgent` or `email` notification."""
    alert = details.alert
    facts = _facts(details, notification, envelope)
    picture = _draw_chart(details)
    facts["chart"] = f"cid:{PICTURE}" if picture else ""
    message = _in_thread(_fill("alert", facts, envelope), alert)
    further = {"picture": picture, "facts": AlertFacts.of(details, notification, envelope.date)}
    return message.model_copy(update={"urgent": notification.kind == NotificationKind.URGENT, **further})


def return_mail(details: AlertDetails, notification: Notification, envelope: Envelope) -> Message:
    """Compose the end of an alert: what was missing has come back."""
    alert, until = details.alert, notification.window_end or details.alert.last_seen
    who, brief = plain_text.named(alert.entity), plain_text.plain(_brief(alert.title), 90)
    notice = Notice(
        subject=f"[back] {plain_text.named(alert.entity, 60)} - {brief}",
        paragraphs=(
            f"{who} is back, or is not expected any more: since {_moment(until)}, {plain_text.plain(alert.detector)} "
            "has found nothing missing.",
            f"Alert {alert.id}, first seen {_moment(alert.first_seen)}, has ended. Another silence opens it again.",
        ),
        commands=_commands(alert, details.highest.finding.finding_id),
    )
    message = _in_thread(notice_mail(notice, envelope), alert)
    return message.model_copy(update={"facts": AlertFacts.of(details, notification, envelope.date)})


def _in_thread(message: Message, alert: Alert) -> Message:
    domain = message.id.strip("<>").rpartition("@")[2]
    parts = alert_parts(alert.detector, canonical_entity(alert.entity), alert.period_start)
    # The root of the thread is never sent, so that no message of the thread depends on another one.
    series = re.sub(r"[^A-Za-z0-9_-]", "-", alert.detector)[:60]
    return message.model_copy(update={"thread": message_id(domain, parts), "series": series})


def alert_text(details: AlertDetails, notification: Notification, envelope: Envelope) -> tuple[str, str]:
    """Compose the subject and the text of `alert_mail` alone."""
    facts = _facts(details, notification, envelope)
    return facts["subject"], _text.get_template("alert.txt").render(facts)


def summary_mail(shown: list[AlertDetails], count: int, detectors: list[str], envelope: Envelope) -> Message:
    """Compose the list of `count` alerts found so late that nobody was notified at once.

    `shown` are the first of them, at most `SUMMARY_LINES`; `detectors` are those of all.
    """
    lines = [_line(details) for details in shown]
    what = f"{count} alert{'s' * (count != 1)} of {', '.join(map(plain_text.plain, detectors[:3]))}"
    what += f" and {len(detectors) - 3} more" if len(detectors) > 3 else ""
    subject = plain_text.plain(f"[delayed] {what}", 150)
    facts = {"subject": subject, "lines": lines, "more": count - len(lines), "sent": _moment(envelope.date)}
    return _fill("summary", facts, envelope).model_copy(update={"series": "delayed"})


def bare_mail(alerts: Sequence[int], error: Exception, envelope: Envelope) -> Message:
    """Name `alerts` that no mail could be composed of, because of `error`."""
    count = f"{len(alerts):,} alerts" if len(alerts) > 1 else f"alert {alerts[0]}"
    notice = Notice(
        subject=f"[tocsin] {count}: the mail could not be composed",
        paragraphs=(
            f"{count[0].upper()}{count[1:]} of your detectors could not be described in this mail. The fault is "
            "Tocsin's, and the log of the notifier has all of it.",
        ),
        commands=[f"tocsin alerts {alert}" for alert in alerts[:SUMMARY_LINES]],
        output=[plain_text.plain(f"{type(error).__name__}: {error}", 500)],
        output_of="The fault",
    )
    return notice_mail(notice, envelope)


def notice_mail(notice: Notice, envelope: Envelope) -> Message:
    """Compose a notice about a job or a run."""
    return _fill("notice", {name: getattr(notice, name) for name in Notice.__dataclass_fields__}, envelope)


def _fill(template: str, facts: dict[str, Any], envelope: Envelope) -> Message:
    html = _html.get_template(f"{template}.html").render(facts)
    return Message(
        id=envelope.message_id,
        recipient=envelope.recipient,
        subject=facts["subject"],
        text=_text.get_template(f"{template}.txt").render(facts),
        html=html if template == "notice" else _inline_styles(html),
        date=envelope.date,
    )


def _inline_styles(html: str) -> str:
    """Copy the styles to their elements, for mail programs that know no style sheets."""
    # Airflow's environment, where notices are composed, has not got it.
    import css_inline

    return css_inline.CSSInliner(keep_at_rules=True, load_remote_stylesheets=False).inline(html)


def _draw_chart(details: AlertDetails) -> bytes:
    try:
        return chart.draw(details)
    except Exception:
        # A mail without its chart still says everything; a mail that never leaves says nothing.
        _log.exception("chart failed", alert=details.alert.id)
        return b""


def _facts(details: AlertDetails, notification: Notification, envelope: Envelope) -> dict[str, Any]:
    """All that the templates say, as text that is safe to show."""
    alert, finding = details.alert, details.highest.finding
    who, title = plain_text.named(alert.entity), plain_text.plain(alert.title)
    open_window = finding.window_end is not None and finding.window_end > envelope.date and not notification.incomplete
    lower_bound = finding.at_least or open_window
    bare_score = f"{number(finding.score)}{'+' * lower_bound}"
    stem = f"{plain_text.named(alert.entity, 60)}: {bare_score} (limit {number(finding.limit)})"
    urgent = "[URGENT] " if finding.level == "urgent" else ""
    others = [stored for stored in details.findings if stored.finding.finding_id != finding.finding_id]
    return {
        "subject": f"{urgent}{stem} - {plain_text.plain(_brief(alert.title), 90)}",
        "level": finding.level,
        "who": who,
        "title": title,
        "entity": [(plain_text.plain(k, 60), plain_text.plain(v)) for k, v in finding.entity.items()],
        "score": score_text(finding.score, at_least=lower_bound),
        "bare_score": bare_score,
        "limit": number(finding.limit),
        "window": _window(details.highest, open_window),
        "first_seen": _moment(alert.first_seen),
        "findings": alert.findings,
        "others": [_other(stored, finding.entity) for stored in others[:_OTHER_WINDOWS]],
        "more_others": max(0, alert.findings - 1 - _OTHER_WINDOWS),
        "owner": plain_text.plain(alert.owner),
        "guide": {name: plain_text.plain(text, 1000) for name, text in alert.facts.items()},
        "detector": plain_text.plain(alert.detector),
        "version": plain_text.plain(finding.version, 20),
        "evidence": [plain_text.value(sample) for sample in finding.evidence],
        "context": [(plain_text.plain(k, 60), plain_text.value(v)) for k, v in finding.context.items()],
        "incomplete": plain_text.plain(notification.incomplete, 300),
        "number": 1 + sum(sent.revision < notification.revision for sent in _sent_to(details, envelope.recipient)),
        "commands": _commands(alert, finding.finding_id),
    }


def _sent_to(details: AlertDetails, recipient: str) -> list[Notification]:
    return [sent for sent in details.notifications if sent.state == "sent" and sent.recipient == recipient]


def _commands(alert: Alert, finding: str) -> list[str]:
    more = [f"tocsin alerts {alert.id}", f"tocsin explain {shlex.quote(finding)}"]
    entity = next(iter(alert.entity.values()))
    if len(alert.entity) == 1 and plain_text.plain(entity, 100) == entity:
        more.append(f"tocsin findings --detector {shlex.quote(alert.detector)} --entity {shlex.quote(entity)}")
    return more


def _window(finding: StoredFinding, still_open: bool) -> str:
    start, end = finding.finding.window_start, finding.finding.window_end
    if start is None or end is None:
        return f"one event, {_moment(finding.finding.event_time_max or finding.first_detected_at)}"
    return plain_text.times(start, end) + (", still open" if still_open else "")


def _other(stored: StoredFinding, highest: dict[str, str]) -> dict[str, str]:
    finding = stored.finding
    score = score_text(finding.score, at_least=finding.at_least)
    who = "" if finding.entity == highest else f", {plain_text.named(finding.entity, 80)}"
    return {"window": _window(stored, False) + who, "score": score, "level": finding.level}


def _line(details: AlertDetails) -> dict[str, Any]:
    alert, finding = details.alert, details.highest.finding
    return {
        "id": alert.id,
        "level": alert.level,
        "who": plain_text.named(alert.entity, 80),
        "title": plain_text.plain(_brief(alert.title), 90),
        "score": number(finding.score),
        "limit": number(finding.limit),
        "window": _window(details.highest, False),
        "findings": alert.findings,
    }


def _brief(title: str) -> str:
    """A title without its explanation in brackets and its full stop."""
    return re.sub(r"\s*\([^)]*\)", "", title).strip().rstrip(".") or title


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
