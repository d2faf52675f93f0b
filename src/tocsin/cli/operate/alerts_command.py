"""`tocsin alerts`: list alerts, and show one with its findings and notifications."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors import findings_command
from tocsin.cli.output import as_json, line, note, table, utc, write_list
from tocsin.declare.model.finding_text import entity_text, number

if TYPE_CHECKING:
    from tocsin.alerts.store.alert_rows import Alert, AlertDetails, Notification


class State(StrEnum):
    """States of an alert, as an option takes them."""

    OPEN = "open"
    RESOLVED = "resolved"


def alerts(
    alert: Annotated[int | None, typer.Argument(help="Its number, from the list.")] = None,
    state: Annotated[State | None, typer.Option(help="In this state.")] = None,
    detector: Annotated[str | None, typer.Option(help="Of this detector.")] = None,
    since: options.Since = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    exit_code: options.FailIfAny = False,
) -> None:
    """List alerts, the latest changed first; of one ALERT show its findings and notifications.

    Exit code 1 when there is none with this number.
    """
    from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store
    from tocsin.declare.settings import load_settings

    if alert is not None:
        _show_alert(alert, json=json)
        return
    wanted = AlertFilter(state=state, detector=detector, since=options.since(since), limit=limit)
    with closing(open_store(load_settings())) as database:
        found = list_alerts(database, wanted)
    what = ("ALERT", "STATE", "LEVEL", "DETECTOR", "ENTITY", "SCORE", "FINDINGS")
    write_list(found, (*what, "FIRST SEEN", "LAST SEEN", "OWNER"), _row, json=json, empty="no alerts")
    if exit_code and found:
        raise typer.Exit(1)


def _show_alert(alert: int, *, json: bool) -> None:
    from tocsin.alerts.store.queries import open_store, show_alert
    from tocsin.declare.settings import load_settings

    with closing(open_store(load_settings())) as database:
        details = show_alert(database, alert)
    if details is None:
        note(f"there is no alert {alert}", style="red")
        raise typer.Exit(1)
    if json:
        as_json(details)
    else:
        _show(details)


def _row(alert: Alert) -> tuple[object, ...]:
    what = (alert.detector, entity_text(alert.entity), number(alert.score), alert.findings)
    return (alert.id, alert.state, alert.level, *what, utc(alert.first_seen), utc(alert.last_seen), alert.owner)


def _show(details: AlertDetails) -> None:
    alert = details.alert
    line(f"{alert.title}", style="bold")
    line(f"alert {alert.id}, {alert.state}, {alert.level}: {alert.detector} about {entity_text(alert.entity)}")
    line(f"highest score {number(alert.score)} ({alert.limits_text})")
    line(f"seen {utc(alert.first_seen)} to {utc(alert.last_seen)}; opened {utc(alert.opened_at)}")
    line("\n".join(f"{name}: {text}" for name, text in alert.facts.items()) + "\n")
    table(findings_command.COLUMNS, map(findings_command.row, details.findings), empty="no findings")
    line("")
    table(
        ("TO", "KIND", "STATE", "SENT", "NOTE"), map(_notification_row, details.notifications), empty="no notifications"
    )


def _notification_row(notification: Notification) -> tuple[object, ...]:
    why = notification.error or notification.incomplete
    if notification.state == "waiting" and notification.window_end is not None:
        why = f"leaves when the window that ends {utc(notification.window_end)} has closed"
    return (notification.recipient, notification.kind, notification.state, utc(notification.sent_at), why)
