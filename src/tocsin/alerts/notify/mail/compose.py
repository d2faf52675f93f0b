"""Compose messages: what each kind of mail says, as a `Letter`.

`plain` cuts what came from logs or a detector.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.evidence.alert_evidence import AlertEvidence, SourceEvidence
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.links import LinkAction, Links
from tocsin.alerts.notify import grouping
from tocsin.alerts.notify.channel import PICTURE, AlertFacts, Message
from tocsin.alerts.notify.mail import chart
from tocsin.alerts.notify.mail.letter import (
    Buttons,
    Code,
    Facts,
    Item,
    Items,
    Letter,
    Output,
    Paragraphs,
    Picture,
    Section,
    Shares,
    Table,
    named,
    plain,
    times,
    value,
)
from tocsin.alerts.notify.outbox import Overview
from tocsin.alerts.store.alert_rows import Alert, AlertDetails, Notification, alert_parts, message_id
from tocsin.declare.model.detector_guide import link_of
from tocsin.declare.model.finding import canonical_entity
from tocsin.declare.model.names import detector_job
from tocsin.declare.model.sizes import number, score_text

_log = structlog.get_logger()
SUMMARY_LINES = 50
_OTHER_WINDOWS = 8
_EVENT_COLUMNS = 3
_BUTTONS = {
    "alert": "Open the alert",
    LinkAction.ACKNOWLEDGE.value: "Acknowledge",
    LinkAction.SILENCE_HOUR.value: "Silence 1 h",
    LinkAction.FALSE_ALARM.value: "False alarm",
}


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Address of a message: all that it needs besides its content; see `Message`."""

    recipient: str
    message_id: str
    date: datetime
    links: Links | None = None


@dataclass(frozen=True, kw_only=True)
class Notice:
    """News for an owner about a job or a run: plain text, whose hidden characters are escaped on the way.

    Attributes:
        subject: "[tocsin] ABOUT: WHAT", or another word in brackets.
        days: of each day that is not published its cells, and the address of its report.
    """

    subject: str
    paragraphs: Sequence[str] = ()
    commands: Sequence[str] = ()
    days: Sequence[tuple[tuple[str, ...], str]] = ()
    output: Sequence[str] = ()
    output_of: str = ""
    links: Sequence[tuple[str, str]] = ()


def alert_mail(details: AlertDetails, notification: Notification, envelope: Envelope) -> Message:
    """Compose an `urgent` or `email` notification."""
    picture = _draw_chart(details)
    message = _about_alert(
        _alert_letter(details, notification, envelope, bool(picture)), details, notification, envelope
    )
    return message.model_copy(update={"urgent": notification.kind == NotificationKind.URGENT, "picture": picture})


def alert_text(details: AlertDetails, notification: Notification, envelope: Envelope) -> tuple[str, str]:
    """Compose the subject and the text of `alert_mail` alone."""
    letter = _alert_letter(details, notification, envelope, False)
    return letter.subject, letter.text()


def return_mail(details: AlertDetails, notification: Notification, envelope: Envelope) -> Message:
    """Compose the end of an alert: what was missing has come back."""
    alert, until = details.alert, notification.window_end or details.alert.last_seen
    who = named(alert.entity)
    letter = Letter(
        subject=f"[back] {named(alert.entity, 60)} - {plain(_brief(alert.title), 90)}",
        tone="good",
        label="BACK",
        about=plain(alert.detector),
        headline=who,
        lead=(
            f"{who} is back, or is not expected any more: since {_moment(until)}, {plain(alert.detector)} has found "
            "nothing missing.",
            f"Alert {alert.id}, first seen {_moment(alert.first_seen)}, has ended. Another silence opens it again.",
        ),
        sections=(
            *_buttons([("Open the alert", envelope.links.alert(alert.id) if envelope.links else "")]),
            Code(title="On the command line", lines=_reading(alert, details.highest.finding.finding_id)),
        ),
    )
    return _about_alert(letter, details, notification, envelope)


def update_mail(details: AlertDetails, notification: Notification, envelope: Envelope) -> Message:
    """Compose what a person has made of an alert, for receivers that follow it."""
    alert = details.alert
    facts = AlertFacts.of(details, notification, envelope.date)
    letter = Letter(
        subject=f"[{facts.happened}] {named(alert.entity, 60)} - {plain(_brief(alert.title), 90)}",
        tone="notice",
        label=facts.happened.upper(),
        about=plain(alert.detector),
        headline=named(alert.entity),
        lead=(f"{plain(facts.who)}: {facts.happened}. {plain(facts.why, 1000)}".strip(),),
    )
    return _about_alert(letter, details, notification, envelope)


def summary_mail(shown: list[AlertDetails], overview: Overview, envelope: Envelope) -> Message:
    """Compose the list of several alerts: `shown` are the `highest` of `overview`, at most `SUMMARY_LINES`."""
    names, count = [plain(name) for name in overview.detectors], overview.alerts
    what = f"{count:,} alert{'s' * (count != 1)} of {', '.join(names[:3])}"
    what += f" and {len(names) - 3} more" if len(names) > 3 else ""
    only = overview.detectors[0] if len(names) == 1 else ""
    command = "tocsin alerts" + (f" --detector {shlex.quote(only)}" if only else "")
    command += f" --limit {min(count, 100_000)}" * (count > 100)  # it lists 100 by default, and 100,000 at most
    more = f"and {count - len(shown):,} more: {command}" if count > len(shown) else ""
    urgent = overview.urgent > 0 and not overview.summary
    mark = "[summary] " if overview.summary else "[URGENT] " if urgent else ""
    storm = "Storm: " if overview.storms else ""
    foot = "Alerts of your detectors that notified nobody at once. " if overview.summary else ""
    letter = Letter(
        subject=plain(f"{mark}{storm}{what}", 150),
        tone="notice" if overview.summary else "urgent" if urgent else "email",
        label="SUMMARY" if overview.summary else "STORM" if overview.storms else "URGENT" if urgent else "ALERTS",
        headline=plain(what, 150),
        lead=_why_several(overview, command),
        sections=[
            *_buttons([("Open the alerts", envelope.links.alerts(only) if envelope.links else "")]),
            Items(items=[alert_item(details, envelope) for details in shown], note=more),
        ],
        foot=f"{foot}Sent {_moment(envelope.date)} to {plain(envelope.recipient)}.",
    )
    series = "delayed" if overview.summary else _series(only or "alerts")
    own = [(details, _notification_in(details, envelope)) for details in shown]
    several = tuple(AlertFacts.of(details, sent, envelope.date) for details, sent in own if sent is not None)
    changes = {"series": series, "urgent": urgent, "several": several, "alerts": count}
    return _message(letter, envelope).model_copy(update=changes)


def _notification_in(details: AlertDetails, envelope: Envelope) -> Notification | None:
    own = (sent for sent in reversed(details.notifications) if sent.recipient == envelope.recipient)
    return next((sent for sent in own if sent.message_id == envelope.message_id), None)


def _why_several(overview: Overview, command: str) -> tuple[str, ...]:
    if overview.summary:
        return (
            "These alerts notified nobody at once. Either they continue an alert that you were notified of before, "
            "a silence muted them, or they were found too late: a job was down or behind, old events were replayed, or "
            "a backfill found what the stream had missed.",
        )
    how_many = f", {overview.urgent:,} of them urgent" if overview.urgent else ""
    lead = f"They were found since the last message{how_many}, so they leave as one."
    if not overview.storms:
        return (lead,)
    minutes = grouping.DIGEST_EVERY.total_seconds() / 60
    digest = f"What follows leaves as a digest every {minutes:g} minutes, until fewer than {grouping.MANY} gather."
    return (lead, f"{digest} No alert is dropped: {command} lists them all.")


def alert_item(details: AlertDetails, envelope: Envelope) -> Item:
    """Describe an alert as one of several."""
    alert, finding = details.alert, details.highest.finding
    return Item(
        head=named(alert.entity, 80),
        figure=f"{score_text(finding.score, at_least=finding.at_least, limit=finding.limit)} "
        f"(limit {number(finding.limit)})",
        tone="urgent" if alert.level == "urgent" else "email",
        lines=(
            f"{alert.level} of {plain(alert.detector)}: {plain(_brief(alert.title), 90)}",
            f"{_window(details.highest, False)}; {alert.findings} finding{'s' * (alert.findings != 1)}; "
            f"tocsin alerts {alert.id}",
        ),
        link=envelope.links.alert(alert.id) if envelope.links else "",
    )


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
        output=[plain(f"{type(error).__name__}: {error}", 500)],
        output_of="The fault",
    )
    return notice_mail(notice, envelope)


def notice_mail(notice: Notice, envelope: Envelope) -> Message:
    """Compose a notice about a job or a run."""
    about, _, what = notice.subject.removeprefix("[tocsin] ").partition(": ")
    lead, *paragraphs = notice.paragraphs or ("",)
    days = [Item(head=", ".join(cells[:-1]), lines=cells[-1:], link=report) for cells, report in notice.days]
    sections = [
        *_buttons(notice.links),
        Paragraphs(texts=paragraphs) if paragraphs else None,
        Items(items=days) if days else None,
        Code(title="On the command line", lines=notice.commands) if notice.commands else None,
        Output(title=notice.output_of, lines=notice.output) if notice.output else None,
    ]
    letter = Letter(
        subject=notice.subject,
        tone="notice",
        label="NOTICE",
        about=about if what else "",
        headline=f"{what[0].upper()}{what[1:]}" if what else about,
        lead=(f"{lead[0].upper()}{lead[1:]}",) if lead else (),
        sections=[section for section in sections if section is not None],
        foot=f"From Tocsin to {plain(envelope.recipient)}.",
    )
    return _message(letter, envelope)


def _message(letter: Letter, envelope: Envelope) -> Message:
    return Message(
        id=envelope.message_id,
        recipient=envelope.recipient,
        subject=letter.subject,
        text=letter.text(),
        html=letter.html(),
        date=envelope.date,
    )


def _about_alert(letter: Letter, details: AlertDetails, notification: Notification, envelope: Envelope) -> Message:
    alert, domain = details.alert, envelope.message_id.strip("<>").rpartition("@")[2]
    facts = AlertFacts.of(details, notification, envelope.date, _addresses(alert, envelope))
    parts = alert_parts(alert.detector, canonical_entity(alert.entity), alert.period_start)
    # The root of the thread is never sent, so that no message of the thread depends on another one.
    further = {"thread": message_id(domain, parts), "series": _series(alert.detector), "facts": facts}
    return _message(letter, envelope).model_copy(update=further)


def _series(detector: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", detector)[:60]


def _draw_chart(details: AlertDetails) -> bytes:
    try:
        return chart.draw(details)
    except Exception:
        # A mail without its chart still says everything; a mail that never leaves says nothing.
        _log.exception("chart failed", alert=details.alert.id)
        return b""


def _alert_letter(details: AlertDetails, notification: Notification, envelope: Envelope, picture: bool) -> Letter:
    alert, finding = details.alert, details.highest.finding
    open_window = finding.window_end is not None and finding.window_end > envelope.date and not notification.incomplete
    lower_bound = finding.at_least or open_window
    score, limit = score_text(finding.score, at_least=lower_bound, limit=finding.limit), number(finding.limit)
    bare_score = f"{score.removeprefix('at least ')}{'+' * lower_bound}"
    urgent, detector = finding.level == "urgent", plain(alert.detector)
    window, findings = _window(details.highest, open_window), f"{alert.findings} finding{'s' * (alert.findings != 1)}"
    alt = f"Score of {named(alert.entity)} over time: {score}, limit {limit}"
    addresses = _addresses(alert, envelope)
    facts = _facts(details, addresses)
    facts += [("score", f"{score}, above {limit} ({finding.level})", ""), ("window", window, "")]
    facts += [(plain(k, 60), value(v), "") for k, v in finding.context.items()]
    sections = [
        *_buttons([(words, addresses.get(name, "")) for name, words in _BUTTONS.items()]),
        *([Picture(address=f"cid:{PICTURE}", words=alt)] if picture else []),
        *evidence_sections(details.evidence),
        *([Code(title="From the detector", lines=list(map(value, finding.evidence)))] if finding.evidence else []),
        Facts(title="About this alert", rows=facts),
        *_other_windows(details),
        Code(title="On the command line", lines=[*_answering(alert), *_reading(alert, finding.finding_id)]),
    ]
    got = [sent for sent in details.notifications if sent.state == "sent" and sent.recipient == envelope.recipient]
    count = 1 + sum(sent.revision < notification.revision for sent in got)
    caution = f"May be incomplete: {plain(notification.incomplete, 300)}. The score may still rise."
    return Letter(
        subject=f"{'[URGENT] ' * urgent}{named(alert.entity, 60)}: {bare_score} (limit {limit}) - "
        f"{plain(_brief(alert.title), 90)}",
        tone="urgent" if urgent else "email",
        label="URGENT" if urgent else "ALERT",
        about=detector,
        headline=named(alert.entity),
        figure=bare_score,
        figure_words=f"above the limit of {limit}",
        lead=(plain(alert.title), f"Since {_moment(alert.first_seen)}; {findings}; window {window}."),
        caution=caution if notification.incomplete else "",
        sections=sections,
        foot=f"Notification {count} of this alert, to {plain(envelope.recipient)}; {plain(alert.owner)} owns "
        f"{detector} (version {plain(finding.version, 20)}).",
    )


def _facts(details: AlertDetails, addresses: dict[str, str]) -> list[tuple[str, str, str]]:
    alert = details.alert
    rows = [(plain(k, 60), plain(v), "") for k, v in details.highest.finding.entity.items()]
    texts = {name: [text] for name, text in alert.facts.items()} | {"references": list(alert.references)}
    shown = [(name, plain(text, 1000)) for name, each in texts.items() for text in each]
    job = [("job", detector_job(plain(alert.detector)), addresses["job"])] if "job" in addresses else []
    pages = {"runbook": addresses.get("runbook", "")}
    return [*rows, *((name, text, link_of(text) or pages.get(name, "")) for name, text in shown), *job]


def _addresses(alert: Alert, envelope: Envelope) -> dict[str, str]:
    links, to, now = envelope.links, envelope.recipient, envelope.date
    if links is None:
        return {}
    found = {"alert": links.alert(alert.id), "runbook": link_of(alert.runbook) or links.runbook(alert.detector)}
    found["job"] = links.job(detector_job(alert.detector))
    try:
        found |= {action.value: links.answer(alert.id, action, to, now) for action in LinkAction}
    except OSError as error:
        # Whoever logs in can answer without a signed link.
        _log.warning("links not signed", error=str(error))
    return {name: address for name, address in found.items() if address}


def _buttons(links: Sequence[tuple[str, str]]) -> list[Section]:
    shown = [(words, address) for words, address in links if address]
    return [Buttons(links=shown)] if shown else []


def evidence_sections(evidence: AlertEvidence | None) -> Iterator[Section]:
    """Describe evidence: what is unusual in it, and its events; for mails and pages."""
    if evidence is None:
        return
    if evidence.note:
        yield Paragraphs(title="Evidence", texts=[f"No events shown: {plain(evidence.note, 300)}"])
    for source in evidence.sources:
        yield from _unusual(source)
        yield from _events(source)


def evidence_text(evidence: AlertEvidence) -> str:
    """Describe evidence as a mail's text part does."""
    sections = list(evidence_sections(evidence))
    return Letter(subject="", tone="notice", label="Evidence", headline="events behind it", sections=sections).text()


def _unusual(source: SourceEvidence) -> Iterator[Section]:
    rows = [
        (plain(column.column, 60), plain(shown.value, 80), shown.share, shown.usual)
        for column in source.unusual
        for shown in column.values
    ]
    if not rows:
        return
    compared = any(usual is not None for *_, usual in rows)
    note = f"Share of {source.count:,} events of {plain(source.source)} in the window"
    if compared and source.since is not None:
        note += f"; usually: of the {source.before:,} before it, from {_moment(source.since)} on"
    yield Shares(title="What is unusual" if compared else "Most frequent values", rows=rows, note=f"{note}.")


def _events(source: SourceEvidence) -> Iterator[Section]:
    name = plain(source.source)
    if not source.events:
        if source.note:
            yield Paragraphs(title=f"Events of {name}", texts=[plain(source.note, 300)])
        return
    columns = list(dict.fromkeys(column for event in source.events for column in event if column != "event_time"))
    texts = {column: [plain(_cell(event.get(column)), 80) for event in source.events] for column in columns}
    constant = [column for column, each in texts.items() if len(set(each)) == 1 and len(source.events) > 1]
    varying = ([column for column in columns if column not in constant] or columns)[:_EVENT_COLUMNS]
    same = {column: texts[column][0] for column in constant if column not in varying and texts[column][0]}
    clock = [str(event.get("event_time", ""))[:23].replace("T", " ").rstrip("Z") for event in source.events]
    day, *others = {time[:10] for time in clock}
    clock = clock if others else [time[11:] for time in clock]
    notes = [f"The same in all: {', '.join(f'{plain(k, 60)} {v}' for k, v in same.items())}."] if same else []
    notes += [plain(source.note, 300)] if source.note else []
    count = len(source.events)
    of_all = f" of {source.count:,}" if source.count > count else ""
    which = f"Latest {count}{of_all} event{'s' * (max(count, source.count) != 1)}"
    which += " before the window" * (not source.count)
    yield Table(
        title=f"{which} of {name}",
        columns=["time (UTC)" if others else f"{day} (UTC)", *(plain(column, 60) for column in varying)],
        rows=[[clock[row], *(texts[column][row] for column in varying)] for row in range(len(clock))],
        note=" ".join(notes),
    )


def _cell(anything: Any) -> str:
    return "" if anything is None else value(anything)


def _other_windows(details: AlertDetails) -> list[Section]:
    finding, alert = details.highest.finding, details.alert
    others = [stored for stored in details.findings if stored.finding.finding_id != finding.finding_id]
    more = max(0, alert.findings - 1 - _OTHER_WINDOWS)
    rows = [_other(stored, finding.entity) for stored in others[:_OTHER_WINDOWS]]
    note = f"and {more} more" if more else ""
    return [Facts(title="Other windows of this alert", rows=rows, note=note)] if rows else []


def _other(stored: StoredFinding, highest: dict[str, str]) -> tuple[str, str, str]:
    finding = stored.finding
    who = "" if finding.entity == highest else f", {named(finding.entity, 80)}"
    name = f"{score_text(finding.score, at_least=finding.at_least)} ({finding.level})"
    return name, _window(stored, False) + who, ""


def _answering(alert: Alert) -> list[str]:
    return [f"tocsin alerts ack {alert.id}", f"tocsin alerts resolve {alert.id} --verdict false"]


def _reading(alert: Alert, finding: str) -> list[str]:
    more = [f"tocsin alerts {alert.id}", f"tocsin explain {shlex.quote(finding)}"]
    entity = next(iter(alert.entity.values()))
    if len(alert.entity) == 1 and plain(entity, 100) == entity:
        more.append(f"tocsin findings --detector {shlex.quote(alert.detector)} --entity {shlex.quote(entity)}")
    return more


def _window(finding: StoredFinding, still_open: bool) -> str:
    start, end = finding.finding.window_start, finding.finding.window_end
    if start is None or end is None:
        return f"one event, {_moment(finding.finding.event_time_max or finding.first_detected_at)}"
    return times(start, end) + (", still open" if still_open else "")


def _brief(title: str) -> str:
    return re.sub(r"\s*\([^)]*\)", "", title).strip().rstrip(".") or title


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
