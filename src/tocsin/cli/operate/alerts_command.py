"""`tocsin alerts`: list and show alerts, and answer them, by the same rules as the pages and the links in mails."""

from __future__ import annotations

import getpass
import json as json_text
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tocsin.alerts.alert_states import AlertState, Verdict
from tocsin.cli import options
from tocsin.cli.detectors import detectors_command
from tocsin.cli.output import counted, line, note, table, utc, write, write_list
from tocsin.cli.project import load_project, load_settings, note_idle, note_left_out, reading_alerts
from tocsin.declare.model.detector import DetectorSpec, Stage
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.sizes import entity_text, number

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tocsin.alerts.actions import ActionResult, Actor, Silence
    from tocsin.alerts.store.alert_rows import Alert, AlertDetails, Notification
    from tocsin.alerts.store.database import Database
    from tocsin.alerts.store.queries import AlertFilter, DetectorDigest
    from tocsin.cli.json_shapes import RoutedShape
    from tocsin.declare.model.alert_matcher import AlertLabels
    from tocsin.declare.model.finding import Finding
    from tocsin.declare.routes import Target
    from tocsin.declare.settings import Settings


class _OwnVerb(TyperGroup):
    """A group whose own name is a verb, too: `tocsin alerts --state open` and `tocsin alerts 12` are its command ""."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        own = self.commands.pop("alerts")
        own.epilog = f"Further verbs, each with a --help of its own: {', '.join(self.commands)}."
        self.commands[""] = own

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_named else ["", *args])


app = typer.Typer(cls=_OwnVerb, help="List, show and answer alerts.")


_COLUMNS = (
    *("ALERT", "STATE", "LEVEL", "DETECTOR", "ENTITY", "SCORE", "FINDINGS"),
    *("FIRST SEEN", "LAST SEEN", "OWNER"),
)
_MOST = 10**18  # no number of a row is as long, and SQLite fails on longer ones
_Alerts = Annotated[list[int], typer.Argument(metavar="ALERT...", max=_MOST, help="Their numbers, from the list.")]
_By = Annotated[str | None, typer.Option("--by", help="Who acts, as pages and history show it; else the login here.")]
_ByDetector = Annotated[
    bool,
    typer.Option(
        "--by-detector",
        help="Sum up by detector what opened since --since, or within a day: how many, in which states, what "
        "people judged, and who they are about.",
    ),
]
_Why = Annotated[str, typer.Option("--why", help="The reason, for the history.")]


@app.command("alerts")
def alerts(
    alert: Annotated[
        int | None, typer.Argument(metavar="[ALERT]", max=_MOST, help="Show this one, by its number.")
    ] = None,
    state: Annotated[AlertState | None, typer.Option(help="In this state.")] = None,
    detector: Annotated[str | None, typer.Option(help="Of this detector.")] = None,
    owner: Annotated[str | None, typer.Option(help="Of detectors of this owner.")] = None,
    level: Annotated[options.Level | None, typer.Option(help="Of this level.")] = None,
    entity: Annotated[str | None, typer.Option(help="With exactly this value in its entity.")] = None,
    since: options.Since = None,
    limit: options.Limit = 100,
    by_detector: _ByDetector = False,
    json: options.Json = False,
    exit_code: options.FailIfAny = False,
) -> None:
    """List alerts, the latest changed first; of one ALERT show findings, notifications and history.

    Exit code 1 when there is none with this number.
    """
    from tocsin.alerts.store.queries import AlertFilter, list_alerts, show_alert

    wanted = AlertFilter(
        state=state, detector=detector, owner=owner, level=level, entity=entity, since=options.since(since), limit=limit
    )
    if alert is not None and (by_detector or exit_code or wanted != AlertFilter()):
        raise typer.BadParameter("shows one alert: leave out what chooses from the list", param_hint="ALERT")
    with reading_alerts() as database:
        if alert is not None:
            _write_alert(alert, show_alert(database, alert), json=json)
            return
        if by_detector:
            raise typer.Exit(_write_digest(database, wanted, json=json) and exit_code)
        found, muting = list_alerts(database, wanted), _read_silences(database)
    write_list(found, _COLUMNS, _row, json=json, empty="no alerts")
    note_left_out(found, limit, detector)
    for one in (silence for silence in muting if silence.matcher.takes_all):
        note(f"every alert is silenced until {utc(one.ends_at)} by {one.owner}: {one.reason}", style="red")
    if exit_code and found:
        raise typer.Exit(1)


def _write_digest(database: Database, wanted: AlertFilter, *, json: bool) -> bool:
    from tocsin.alerts.store.queries import digest

    options.refuse_beside("with --by-detector", limit=wanted.limit != 100)
    found = digest(database, wanted)
    write_list(found, _DIGEST, _digest_row, json=json, empty="no alerts")
    return bool(found)


def _write_alert(alert: int, details: AlertDetails | None, *, json: bool) -> None:
    if details is None:
        note(f"there is no alert {alert}", style="red")
        raise typer.Exit(1)
    write(details, _show, json=json)


@app.command()
def ack(
    alerts: _Alerts,
    how_long: Annotated[str, typer.Option("--for", metavar="SPAN", help="How long nobody is notified.")] = "4h",
    why: _Why = "",
    by: _By = None,
    json: options.Json = False,
) -> None:
    """Acknowledge alerts: you look at them, and nobody is notified until that expires or the level rises.

    Exit code 1 when one of them cannot be acknowledged; the others are.
    """
    from tocsin.alerts import actions

    seconds = options.span(how_long, "--for")
    with _acting(by, why) as (connection, who):
        done = actions.acknowledge(connection, alerts, who, actions.in_hours(who.at, seconds / 3600))
    _write_done(done, json=json)


@app.command()
def resolve(
    alerts: _Alerts,
    verdict: Annotated[Verdict, typer.Option(help="True: it was one. Expected: no fault. False: a false alarm.")],
    why: _Why = "",
    by: _By = None,
    json: options.Json = False,
) -> None:
    """Resolve alerts with a verdict, by which the detector's page counts its precision.

    Exit code 1 when one of them cannot be resolved; the others are.
    """
    from tocsin.alerts import actions

    with _acting(by, why) as (connection, who):
        done = actions.resolve(connection, alerts, who, verdict)
    _write_done(done, json=json)


@app.command()
def silence(
    how_long: Annotated[str, typer.Option("--for", metavar="SPAN", help="How long.")],
    why: Annotated[str, typer.Option("--why", help="The reason; it is shown wherever the silence is.")],
    detector: Annotated[list[str] | None, typer.Option(help="Of this detector, or those of a pattern.")] = None,
    owner: Annotated[list[str] | None, typer.Option(help="Of this owner.")] = None,
    level: Annotated[list[options.Level] | None, typer.Option(help="Of this level.")] = None,
    entity: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="About this entity.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Of detectors with this tag.")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="Mute all alerts of all detectors.")] = False,
    by: _By = None,
    json: options.Json = False,
) -> None:
    """Mute the notifications of alerts for a time; values are patterns, such as payments_*.

    What is given must all fit. Alerts open all the same, and notify when the silence ends while they are open.
    """
    from tocsin.alerts import actions
    from tocsin.declare.model.alert_matcher import AlertMatcher

    matcher = AlertMatcher(
        detector=tuple(detector or ()),
        owner=tuple(owner or ()),
        level=tuple(level or ()),
        entity=options.columns(entity or []),
        tags=tuple(tag or ()),
    )
    seconds = options.span(how_long, "--for")
    with _acting(by, why) as (connection, who):
        end = actions.in_hours(who.at, seconds / 3600)
        made = actions.silence(connection, matcher, who, end, everything=everything)
    _write_silences([made], json=json)


@app.command()
def silences(
    end: Annotated[int | None, typer.Option("--end", metavar="SILENCE", max=_MOST, help="End this one now.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    by: _By = None,
    json: options.Json = False,
) -> None:
    """List the silences, those that end first in front; or end one."""
    from tocsin.alerts import actions

    if end is not None:
        options.refuse_beside("with --end", ended=ended)
        with _acting(by) as (connection, who):
            found = [actions.unsilence(connection, end, who)]
    else:
        options.refuse_beside("without --end", by=by)
        with reading_alerts() as database:
            found = _read_silences(database, ended=ended)
    _write_silences(found, json=json)


@app.command()
def resend(
    alert: Annotated[int | None, typer.Argument(max=_MOST, help="Its number: what was refused about it.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="What this recipient has refused.")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="What any recipient has refused within a week.")] = False,
    json: options.Json = False,
) -> None:
    """Send again what was refused for good, to the same addresses, once these take it.

    Whoever was notified of the alert since gets nothing again. Exit code 1 when there is nothing to send.
    """
    from tocsin.alerts.notify import outbox
    from tocsin.cli.json_shapes import ResentShape

    if sum((alert is not None, to is not None, refused)) != 1:
        raise typer.BadParameter("give an ALERT, --to RECIPIENT, or --refused")
    with _acting(None) as (connection, who):
        count = outbox.resend(connection, to if alert is None else alert, who.at)
    told = f"{counted(count, 'notification')} will be sent again" if count else "nothing was refused"
    write(ResentShape(notifications=count), lambda _: line(told), json=json)
    if not count:
        raise typer.Exit(1)


_DIGEST = ("DETECTOR", "ALERTS", "URGENT", "OPEN", "ACKNOWLEDGED", "TRUE", "EXPECTED", "FALSE", "MOST ABOUT", "OWNER")


def _digest_row(own: DetectorDigest) -> tuple[object, ...]:
    most = "; ".join(f"{entity} ({count:,})" for entity, count in own.entities)
    states = (own.alerts, own.urgent, own.open, own.acknowledged, own.true, own.expected, own.false)
    return (own.detector, *states, most, own.owner)


@contextmanager
def _acting(by: str | None, why: str = "") -> Iterator[tuple[Connection, Actor]]:
    from tocsin.alerts.actions import Actor
    from tocsin.alerts.store.database import Database

    with closing(Database(load_settings().alerts_database)) as database:
        if not database.is_ready():
            raise TransientError("there are no alerts yet: the indexer has not made the alerts DB")
        try:
            who = Actor(by or getpass.getuser(), datetime.now(UTC), why)
            with database.write() as connection:
                yield connection, who
        except (ValueError, LookupError) as error:
            raise typer.BadParameter(str(error)) from None


def _write_done(done: list[ActionResult], *, json: bool) -> None:
    write_list(
        done, ("ALERT", "STATE", "NOT DONE"), lambda one: (one.alert, one.state, one.refused), json=json, empty=""
    )
    if any(result.refused for result in done):
        raise typer.Exit(1)


def _read_silences(database: Database, *, ended: bool = False) -> list[Silence]:
    from tocsin.alerts import actions

    if not database.is_ready():
        return []
    with database.read() as connection:
        return actions.list_silences(connection, datetime.now(UTC), ended=ended)


def _write_silences(found: list[Silence], *, json: bool) -> None:
    columns = ("SILENCE", "MUTES", "UNTIL", "BY", "REASON", "ENDED BY")
    write_list(found, columns, _silence_row, json=json, empty="no silences")
    if active := [silence for silence in found if silence.ends_at > datetime.now(UTC)]:
        note_idle({f"silence {silence.id}": silence.matcher for silence in active})


def _silence_row(silence: Silence) -> tuple[object, ...]:
    return (silence.id, silence.matcher.text, utc(silence.ends_at), silence.owner, silence.reason, silence.ended_by)


def _row(alert: Alert) -> tuple[object, ...]:
    what = (alert.detector, entity_text(alert.entity), number(alert.score), alert.findings)
    return (alert.id, alert.state, alert.level, *what, utc(alert.first_seen), utc(alert.last_seen), alert.owner)


def _show(details: AlertDetails) -> None:
    alert = details.alert
    line(f"{alert.title}", style="bold")
    line(f"alert {alert.id}, {_state(alert)}, {alert.level}: {alert.detector} about {entity_text(alert.entity)}")
    line(f"highest score {number(alert.score)} ({alert.limits_text})")
    line(f"seen {utc(alert.first_seen)} to {utc(alert.last_seen)}; opened {utc(alert.opened_at)}")
    line("\n".join(f"{name}: {text}" for name, text in alert.facts.items()) + "\n")
    table(detectors_command.COLUMNS, map(detectors_command.row, details.findings), empty="no findings")
    line("")
    table(
        ("TO", "KIND", "STATE", "SENT", "NOTE"), map(_notification_row, details.notifications), empty="no notifications"
    )
    if details.evidence is not None:
        from tocsin.alerts.notify.mail.compose import evidence_text

        line(f"\n{evidence_text(details.evidence).strip()}")
    line("")
    steps = ((utc(step.at), step.who, step.action, step.why) for step in details.history)
    table(("WHEN", "WHO", "WHAT", "WHY"), steps, empty="no history")


def _state(alert: Alert) -> str:
    if alert.acknowledged_until is not None:
        return f"{alert.state} by {alert.acknowledged_by} until {utc(alert.acknowledged_until)}"
    return f"{alert.state} by {alert.acknowledged_by}: {alert.verdict}" if alert.verdict else alert.state


def _notification_row(notification: Notification) -> tuple[object, ...]:
    why = notification.error or notification.muted_by or notification.incomplete
    if notification.state == "waiting" and notification.kind == "email":
        why = f"leaves when the window that ends {utc(notification.window_end)} has closed"
    return (notification.recipient, notification.kind, notification.state, utc(notification.sent_at), why)


_Finding = Annotated[str | None, typer.Argument(metavar="[FINDING]", help="How the id of a finding begins.")]
_Send = Annotated[bool, typer.Option("--send", help="Send a test message to each of its receivers, now.")]


def route(
    finding: _Finding = None,
    detector: Annotated[str | None, typer.Option(help="Instead of a finding: an alert of this detector.")] = None,
    entity: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="About this entity.")] = None,
    level: Annotated[options.Level | None, typer.Option(help="Of this level; else the highest.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="When it is sent, in UTC; else now.")] = None,
    send: _Send = False,
    json: options.Json = False,
) -> None:
    """Say where an alert would go by routes.toml, and why: each route that is tried.

    With --send a test message goes to each receiver; exit code 1 when one does not take it. Silences are not asked.
    """
    from tocsin.alerts.store.queries import find_finding
    from tocsin.cli.json_shapes import RoutedReceiver, RoutedShape
    from tocsin.declare.routes import read_routes

    settings, catalog = load_project()
    now = datetime.now(UTC)
    moment = now if at is None else options.moment(at, "--at", now)
    if (finding is None) == (detector is None):
        raise typer.BadParameter("say the beginning of a finding's id, or --detector NAME")
    found = None
    if finding:
        with reading_alerts() as database:
            found = find_finding(database, finding).finding
    spec = catalog.detector(found.detector if found else detector or "")
    labels = _labels(spec, found, options.columns(entity or []), level)
    routes = read_routes(settings.project)
    targets = routes.recipients(labels, moment, settings.alerts.urgent_recipients)
    outcomes = {target.recipient: _try(settings, target, labels) for target in targets} if send else {}
    shown = RoutedShape(
        detector=labels.detector, owner=labels.owner, level=labels.level, entity=dict(labels.entity),
        tags=list(labels.tags), at=moment, tried=routes.tried(labels, moment),
        to=[RoutedReceiver(**vars(target), outcome=outcomes.get(target.recipient, "")) for target in targets],
    )  # fmt: skip
    write(shown, lambda shown: _show_route(shown, spec), json=json)
    if any(outcome != "sent" for outcome in outcomes.values()):
        raise typer.Exit(1)


def _labels(
    spec: DetectorSpec, finding: Finding | None, entity: dict[str, tuple[str, ...]], level: options.Level | None
) -> AlertLabels:
    from tocsin.alerts.alert_policy import dedup_key
    from tocsin.declare.model.alert_matcher import AlertLabels, AlertMatcher

    if entity:
        note_idle({"--entity": AlertMatcher(detector=(spec.name,), entity=entity)})
    about = json_text.loads(dedup_key(finding.entity, spec)) if finding else {}
    about |= {column: values[-1] for column, values in entity.items()}
    highest = finding.level if finding else "email" if spec.levels.urgent is None else "urgent"
    return AlertLabels(spec.name, spec.owner, level.value if level else highest, about, spec.tags)


def _try(settings: Settings, target: Target, labels: AlertLabels) -> str:
    from tocsin.alerts.notify.channel import Channels, Result
    from tocsin.alerts.notify.mail.compose import Notice
    from tocsin.alerts.notify.notices import compose_notice

    about = f"{labels.level} alert of {labels.detector}"
    notice = Notice(
        subject=f"[test] {target.recipient} gets the {about}",
        paragraphs=(
            f"This is a test: nothing was found. An {about} would reach you by {target.route}.",
            f"It was sent by `tocsin alerts route --send` to {target.recipient}.",
        ),
    )
    with Channels(settings) as channels:
        delivery = channels.send(compose_notice(notice, f"test-{uuid.uuid4().hex}", target.recipient, settings))
    return "sent" if delivery.result is Result.SENT else f"{delivery.result.value}: {delivery.reason}"


def _show_route(shown: RoutedShape, spec: DetectorSpec) -> None:
    about = f" about {entity_text(shown.entity)}" if shown.entity else ", about no entity: say one with --entity"
    line(f"{shown.level} alert of {shown.detector}{about}; owner {shown.owner}; {utc(shown.at)}")
    if not (spec.stage is Stage.LIVE and spec.notify):
        why = "it declares notify=False" if spec.stage is Stage.LIVE else f"its stage is {spec.stage.value}"
        line(f"{shown.detector} notifies nobody now: {why}", style="yellow")
    line("")
    rows = [(each.route, "takes it" if each.takes else "no", each.why) for each in shown.tried]
    table(("ROUTE", "", "WHY"), rows, empty="")
    line("")
    table(("TO", "BY", "TEST"), [(to.recipient, to.route, to.outcome) for to in shown.to], empty="")


app.command("route")(route)
