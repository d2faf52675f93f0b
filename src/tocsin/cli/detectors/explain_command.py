"""`tocsin explain`: all that holds for a detector, or is known of a finding, in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.detectors_command import list_versions, window
from tocsin.cli.output import as_json, as_text, counted, line, table, utc
from tocsin.cli.project import load_project
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.sizes import entity_text, number, score_text

if TYPE_CHECKING:
    from tocsin.alerts.evidence.finding_explanation import FindingExplanation
    from tocsin.alerts.store.alert_rows import Notification
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.settings import Settings
    from tocsin.detect.explanation import DetectorExplanation

_What = Annotated[str, typer.Argument(metavar="NAME|FINDING", help="A detector, or how the id of a finding begins.")]
_Versions = Annotated[
    bool, typer.Option("--versions", help="Of a detector or a flow (flow:NAME): list the versions that ran here.")
]
_Plan = Annotated[bool, typer.Option("--plan", help="Also have Spark plan it: its mode, and why; takes some seconds.")]
_Events = Annotated[
    int | None,
    typer.Option("--events", min=0, metavar="N", help="Of a finding: show so many of its events; default: 10."),
]
_ID = re.compile("[0-9a-f]{4,64}")


def explain(
    what: _What,
    plan: _Plan = False,
    versions: _Versions = False,
    events: _Events = None,
    json: options.Json = False,
) -> None:
    """Explain a detector: each of its keys with the value that holds, where that comes from, and its meaning.

    Besides, what follows from them: its version, what becomes of its state, and with --plan its mode.

    Of a finding: the code that made it, what other limits would change, the events of its entity in its window (from
    history, or from Kafka as far as it still holds them), its alert, and the mail about it. See `tocsin findings`.

    With --versions a copy of each version is named: to go back to one, copy it over the file in the project. Comments
    `# carries lib/...` at its end hold the modules that it reached: remove them, and revert lib/ where it differs.
    """
    if versions:
        options.refuse_beside("with --versions", plan=plan, events=events)
        list_versions(what, json=json)
        return
    settings, catalog = load_project()
    if _ID.fullmatch(what) and what not in catalog.detectors:
        from tocsin.alerts.evidence.finding_explanation import explain_finding

        options.refuse_beside("with a finding", plan=plan)
        found = explain_finding(settings, what, 10 if events is None else events)
        as_json(found) if json else _show_finding(found)
        return
    options.refuse_beside("with a detector", events=events)
    explanation = _of_detector(settings, catalog, what, plan=plan)
    if json:
        as_json(explanation)
        return
    line(f"{explanation.name} ({explanation.path})\n\n{explanation.doc.strip()}\n")
    rows = [(key.key, key.value, key.origin, key.meaning) for key in explanation.keys]
    table(("KEY", "VALUE", "FROM", "MEANING"), rows, empty="")
    if not plan:
        line("\nMode, and the kind of the score, follow from Spark's plan: add --plan")


def _of_detector(settings: Settings, catalog: Catalog, name: str, *, plan: bool) -> DetectorExplanation:
    from tocsin.detect.explanation import explained
    from tocsin.supervise.planning.desired_inputs import memory_limit

    spec = catalog.detector(name)
    sources = catalog.sources_of(spec)
    limit = f"{memory_limit(settings, sources, spec.memory) / 1e6:,.0f} MB"
    besides = [("memory limit", limit, "Python and JVM together; a job that takes more is restarted")]
    return explained(spec, sources, besides + (_plan_rows(settings, catalog, spec) if plan else []))


def _plan_rows(settings: Settings, catalog: Catalog, spec: DetectorSpec) -> list[tuple[str, str, str]]:
    from tocsin.detect.spark.plan import plan_of
    from tocsin.platform.environments import go_on_by_its_python
    from tocsin.spark.session import planning_session

    go_on_by_its_python(settings, spec.name)
    with planning_session(settings) as spark:
        found = plan_of(spark, spec, catalog)
    kind = "session windows, which end by a gap; " if found.has_sessions else ""
    return [("mode", found.mode, kind + found.reason), ("kind of score", str(found.score.kind), found.score.why)]


def _show_finding(found: FindingExplanation) -> None:
    finding = found.stored.finding
    line(f"{finding.detector} about {entity_text(finding.entity)}: {finding.level}", style="bold")
    table(("", ""), [row for row in _facts(found) if row[1]], empty="")
    for sentence in found.otherwise:
        line(f"  {sentence}")
    for name, value in finding.context.items():
        line(f"  {name}: {as_text(value)}")
    if finding.evidence:
        line("\nEvidence", style="bold")
        for sample in finding.evidence:
            line(f"  {as_text(sample)}")
    line("\nEvents", style="bold")
    _show_events(found)
    line("\nMail, if it left now", style="bold")
    line(f"Subject: {found.mail_subject}\n\n{found.mail_text.rstrip()}" if found.mail_text else "its detector is gone")


def _facts(found: FindingExplanation) -> list[tuple[str, str]]:
    stored, finding = found.stored, found.stored.finding
    score = score_text(finding.score, at_least=finding.at_least, limit=finding.limit)
    superseded = f"since {utc(stored.superseded_at)}, by {stored.superseded_by}" if stored.superseded_at else ""
    alert = found.alert
    about = f"{alert.id}, {alert.state}, {counted(alert.findings, 'finding')}" if alert else "none"
    return [
        ("finding", finding.finding_id),
        ("window", window(stored)),
        ("score", f"{score}, limit {number(finding.limit)}"),
        ("limits now", ", ".join(f"{name} above {number(limit)}" for name, limit in (found.limits or {}).items())),
        ("version", _version(found)),
        ("origin", f"{finding.origin}, first detected {utc(stored.first_detected_at)}"),
        ("superseded", superseded),
        ("alert", about),
        *(("notification", _notification_text(notification)) for notification in found.notifications),
    ]


def _version(found: FindingExplanation) -> str:
    made, now = found.stored.finding.version, found.version_in_force
    ran = f", ran {utc(found.version_ran[0])} to {utc(found.version_ran[1])} or later" if found.version_ran else ""
    if now is None:
        return f"{made}{ran}; its detector is not declared now, or cannot be read"
    return f"{made}, the one in force{ran}" if made == now else f"{made}{ran}; {now} is in force now"


def _notification_text(notification: Notification) -> str:
    what = utc(notification.sent_at) if notification.sent_at else notification.error
    return f"{notification.kind} to {notification.recipient}: {notification.state} {what}".rstrip()


def _show_events(found: FindingExplanation) -> None:
    from tocsin.declare.model.source import EVENT_COLUMNS

    if not found.searched:
        line("  not looked for: the finding does not tell their time")
    for part in found.events:
        if part.place:
            shown = f", the latest {len(part.events)}" if part.count > len(part.events) else ""
            line(f"  {counted(part.count, 'event')} of {part.source} about it, from {part.place}{shown}:")
        if part.note:
            line(f"  {part.source}: {part.note}", style="yellow")
        for event in part.events:
            shown_values = {name: value for name, value in event.items() if name not in EVENT_COLUMNS}
            line(f"  {event['event_time']:%H:%M:%S.%f}  {as_text(shown_values)}")
