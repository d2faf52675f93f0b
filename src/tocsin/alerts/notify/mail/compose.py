"""Build the mails: multipart/alternative of a text that says everything, and HTML with its chart inside.

Everything that came from logs or from a detector passes `plain` (and, in HTML, Jinja's escaping) on its way.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

import css_inline
import structlog
from jinja2 import Environment, PackageLoader, StrictUndefined

from tocsin.alerts.alert_policy import Kind
from tocsin.alerts.notify.mail import chart, plain_text
from tocsin.alerts.store.alert_rows import Alert, AlertDetails, Notification, StoredFinding, alert_parts, message_id
from tocsin.model.finding import canonical_entity

_log = structlog.get_logger()
_loader = PackageLoader("tocsin.alerts.notify.mail")
_options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
_html = Environment(loader=_loader, autoescape=True, **_options)
# Plain text has no markup that could be escaped.
_text = Environment(loader=_loader, autoescape=False, keep_trailing_newline=True, **_options)
_inliner = css_inline.CSSInliner(keep_at_rules=True, load_remote_stylesheets=False)
_CHART = "chart"
SUMMARY_LINES = 50
_OTHER_WINDOWS = 8


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What a mail needs besides its content."""

    sender: str
    recipient: str
    message_id: str
    date: datetime

    @property
    def domain(self) -> str:
        """Domain of the ids in headers."""
        return self.sender.rpartition("@")[2]


def warm_up() -> None:
    """Load what drawing needs, so that the first mail does not wait for it."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401  # loading it is the purpose


def alert_mail(details: AlertDetails, notification: Notification, envelope: Envelope) -> EmailMessage:
    """The mail of an `urgent` or `email` notification."""
    alert = details.alert
    facts = _facts(details, notification, envelope)
    mail = _headed(envelope, facts["subject"])
    root = message_id(envelope.domain, alert_parts(alert.detector, canonical_entity(alert.entity), alert.period_start))
    # The root of the thread is never sent, so that no mail of the thread depends on another one.
    mail["References"] = root
    mail["In-Reply-To"] = root
    mail["List-Id"] = f"<{_label(alert.detector)}.tocsin.{envelope.domain}>"
    if notification.kind == Kind.URGENT:
        mail["Importance"] = "high"
        mail["X-Priority"] = "1 (Highest)"
    picture = _drawn(details)
    facts["chart"] = f"cid:{_CHART}@{envelope.domain}" if picture else ""
    _fill(mail, "alert", facts)
    if picture:
        html = mail.get_payload(1)
        assert isinstance(html, EmailMessage)
        cid = f"<{_CHART}@{envelope.domain}>"
        html.add_related(picture, "image", "png", cid=cid, disposition="inline", filename="score.png")
    return mail


def summary_mail(shown: list[AlertDetails], count: int, detectors: list[str], envelope: Envelope) -> EmailMessage:
    """The mail that lists alerts found so late that nobody was notified at once.

    Args:
        shown: the first of them, at most `SUMMARY_LINES`.
        count: how many there are.
        detectors: of all of them.
        envelope: how it leaves.
    """
    lines = [_line(details) for details in shown]
    what = f"{count} alert{'s' * (count != 1)} of {', '.join(map(plain_text.plain, detectors[:3]))}"
    what += f" and {len(detectors) - 3} more" if len(detectors) > 3 else ""
    subject = plain_text.plain(f"[delayed] {what}", 150)
    mail = _headed(envelope, subject)
    mail["List-Id"] = f"<delayed.tocsin.{envelope.domain}>"
    facts = {"subject": subject, "lines": lines, "more": count - len(lines), "sent": _moment(envelope.date)}
    _fill(mail, "summary", facts)
    return mail


def _headed(envelope: Envelope, subject: str) -> EmailMessage:
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(display_name="Tocsin", addr_spec=envelope.sender)
    mail["To"] = envelope.recipient
    mail["Subject"] = subject
    mail["Date"] = format_datetime(envelope.date)
    mail["Message-ID"] = envelope.message_id
    mail["Auto-Submitted"] = "auto-generated"
    return mail


def _fill(mail: EmailMessage, template: str, facts: dict[str, Any]) -> None:
    mail.set_content(_text.get_template(f"{template}.txt").render(facts), cte="quoted-printable")
    html = _inliner.inline(_html.get_template(f"{template}.html").render(facts))
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    if str(mail["Subject"]).isascii():
        # Folding may put all of it on a second line, which readers show with a space before it.
        mail.policy = SMTP.clone(max_line_length=998)


def _drawn(details: AlertDetails) -> bytes | None:
    try:
        return chart.draw(details)
    except Exception:
        # A mail without its chart still says everything; a mail that never leaves says nothing.
        _log.exception("chart cannot be drawn", alert=details.alert.id)
        return None


def _facts(details: AlertDetails, notification: Notification, envelope: Envelope) -> dict[str, Any]:
    """All that the templates say, as text that is safe to show."""
    alert, finding = details.alert, details.highest.finding
    who, title = plain_text.named(alert.entity), plain_text.plain(alert.title)
    open_window = finding.window_end is not None and finding.window_end > envelope.date and not notification.incomplete
    score = plain_text.number(finding.score)
    lower_bound = finding.at_least or open_window
    stem = (
        f"{plain_text.named(alert.entity, 60)}: {score}{'+' * lower_bound} (limit {plain_text.number(finding.limit)})"
    )
    urgent = "[URGENT] " if finding.level == "urgent" else ""
    others = [one for one in details.findings if one.finding.finding_id != finding.finding_id]
    return {
        "subject": f"{urgent}{stem} - {plain_text.plain(_brief(alert.title), 90)}",
        "level": finding.level,
        "who": who,
        "title": title,
        "entity": [(plain_text.plain(k, 60), plain_text.plain(v)) for k, v in alert.entity.items()],
        "score": f"at least {score}" if lower_bound else score,
        "bare_score": f"{score}{'+' * lower_bound}",
        "limit": plain_text.number(finding.limit),
        "window": _window(details.highest, open_window),
        "first_seen": _moment(alert.first_seen),
        "findings": alert.findings,
        "others": [_other(one) for one in others[:_OTHER_WINDOWS]],
        "more_others": max(0, alert.findings - 1 - _OTHER_WINDOWS),
        "owner": plain_text.plain(alert.owner),
        "runbook": plain_text.plain(alert.runbook, 500),
        "runbook_is_link": bool(re.match(r"https?://", alert.runbook)),
        "detector": plain_text.plain(alert.detector),
        "version": plain_text.plain(finding.version, 20),
        "evidence": [plain_text.value(sample) for sample in finding.evidence],
        "context": [(plain_text.plain(k, 60), plain_text.value(v)) for k, v in finding.context.items()],
        "incomplete": plain_text.plain(notification.incomplete, 300),
        "revision": notification.revision,
        "commands": _commands(alert),
    }


def _commands(alert: Alert) -> list[str]:
    """How to look further, to be pasted into a shell."""
    more = [f"tocsin alerts show {alert.id}"]
    entity = next(iter(alert.entity.values()))
    if len(alert.entity) == 1 and plain_text.plain(entity, 100) == entity:
        more.append(f"tocsin findings --detector {shlex.quote(alert.detector)} --entity {shlex.quote(entity)}")
    return more


def _window(one: StoredFinding, still_open: bool) -> str:
    start, end = one.finding.window_start, one.finding.window_end
    if start is None or end is None:
        return f"one event, {_moment(one.finding.event_time_max or one.first_detected_at)}"
    return plain_text.times(start, end) + (", still open" if still_open else "")


def _other(one: StoredFinding) -> dict[str, str]:
    finding = one.finding
    score = f"at least {plain_text.number(finding.score)}" if finding.at_least else plain_text.number(finding.score)
    return {"window": _window(one, False), "score": score, "level": finding.level}


def _line(details: AlertDetails) -> dict[str, Any]:
    alert, finding = details.alert, details.highest.finding
    return {
        "id": alert.id,
        "level": alert.level,
        "who": plain_text.named(alert.entity, 80),
        "title": plain_text.plain(_brief(alert.title), 90),
        "score": plain_text.number(finding.score),
        "limit": plain_text.number(finding.limit),
        "window": _window(details.highest, False),
        "findings": alert.findings,
    }


def _brief(title: str) -> str:
    """A title without its explanation in brackets and its full stop."""
    return re.sub(r"\s*\([^)]*\)", "", title).strip().rstrip(".") or title


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _label(name: str) -> str:
    """A detector's name as the label of a List-Id."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60]
