"""`tocsin alerts route`: where an alert would go, and why."""

from __future__ import annotations

import json as json_text
import uuid
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, line, table, utc
from tocsin.declare.model.detector import Stage
from tocsin.declare.model.sizes import entity_text

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import RoutedShape
    from tocsin.declare.model.alert_matcher import AlertLabels
    from tocsin.declare.model.detector import DetectorSpec
    from tocsin.declare.model.finding import Finding
    from tocsin.declare.routes import Target
    from tocsin.declare.settings import Settings

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
    from tocsin.cli.json_shapes import RoutedReceiver, RoutedShape
    from tocsin.declare.catalog import load_project
    from tocsin.declare.routes import read_routes

    settings, catalog = load_project()
    now = datetime.now(UTC)
    moment = now if at is None else options.moment(at, "--at", now)
    if (finding is None) == (detector is None):
        raise typer.BadParameter("say the beginning of a finding's id, or --detector NAME")
    found = _find(settings, finding) if finding else None
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
    as_json(shown) if json else _show(shown, spec)
    if any(outcome != "sent" for outcome in outcomes.values()):
        raise typer.Exit(1)


def _find(settings: Settings, beginning: str) -> Finding:
    from tocsin.alerts.store.queries import find_findings, open_store

    with closing(open_store(settings)) as database:
        found = find_findings(database, beginning)
    if len(found) != 1:
        ids = ", ".join(stored.finding.finding_id for stored in found)
        raise typer.BadParameter(f"several begin so: {ids}" if found else f"there is no finding '{beginning}'")
    return found[0].finding


def _labels(
    spec: DetectorSpec, finding: Finding | None, entity: dict[str, tuple[str, ...]], level: options.Level | None
) -> AlertLabels:
    from tocsin.alerts.alert_policy import dedup_key
    from tocsin.declare.model.alert_matcher import AlertLabels

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


def _show(shown: RoutedShape, spec: DetectorSpec) -> None:
    about = f" about {entity_text(shown.entity)}" if shown.entity else ", about no entity: say one with --entity"
    line(f"{shown.level} alert of {shown.detector}{about}; owner {shown.owner}; {utc(shown.at)}")
    if not (spec.stage is Stage.LIVE and spec.notify):
        line(f"{shown.detector} notifies nobody now: its stage is {spec.stage.value}", style="yellow")
    line("")
    rows = [(each.route, "takes it" if each.takes else "no", each.why) for each in shown.tried]
    table(("ROUTE", "", "WHY"), rows, empty="")
    line("")
    table(("TO", "BY", "TEST"), [(to.recipient, to.route, to.outcome) for to in shown.to], empty="")
