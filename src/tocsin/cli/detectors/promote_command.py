"""`tocsin promote`: let a detector in shadow notify people, by the evidence of its days in shadow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.detectors import test_command
from tocsin.cli.output import line, note, table, utc

if TYPE_CHECKING:
    from tocsin.alerts.evidence.shadow_evidence import ShadowDay, ShadowEvidence
    from tocsin.model.detector import DetectorSpec
    from tocsin.project.catalog import Catalog
    from tocsin.project.settings import Settings

_Name = Annotated[str, typer.Argument(help="A detector in stage shadow.")]
_Force = Annotated[
    str | None,
    typer.Option("--force", metavar="REASON", help="Promote it without a whole day in shadow, for a reason."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the evidence and run the cases.")]


def promote(name: _Name, force: _Force = None, dry_run: _DryRun = False) -> None:
    """Change the stage of a detector from shadow to live, in its file: from then on its findings notify people.

    Shows what it did in shadow: for each day its findings, the alerts that they would have opened, records in
    quarantine, and whether stream and backfill agree. Then it runs the cases, as `tocsin test` does. Refused, with exit
    code 1, if a case fails, or if this version has not run for a whole day in shadow; --force helps against the second
    alone. Nothing but that word of the file is changed; then `tocsin plan` says what a deploy does.
    """
    from tocsin.alerts.evidence.shadow_evidence import collect_evidence
    from tocsin.detect.stage_edit import set_stage
    from tocsin.model.detector import Stage
    from tocsin.project.catalog import load_project

    settings, catalog = load_project()
    spec = _in_shadow(settings, catalog, name)
    seen = spec.path.read_bytes()
    now = datetime.now(UTC)
    evidence = collect_evidence(settings, spec, catalog.sources_of(spec), now)
    _show(evidence)
    lacking = evidence.lacks(now)
    if lacking and not force:
        note(f"not promoted: {lacking}; wait, or give a reason: --force REASON", style="red")
    _run_cases(spec)
    if lacking and not force:
        raise typer.Exit(1)
    if lacking:
        line(f"although {lacking}, promoted for a reason: {force}", style="yellow")
    if dry_run:
        line(f"{name} can be promoted; nothing is changed")
        return
    set_stage(spec.path, seen, Stage.LIVE)
    line(f"{name} is live in {spec.path}; what a deploy does:", style="green")
    _show_plan(name)


def _in_shadow(settings: Settings, catalog: Catalog, name: str) -> DetectorSpec:
    """Return the detector `name` if it may be promoted.

    Raises:
        ConfigError: it is in another stage, or has no cases.
    """
    from tocsin.cases.case_presence import faults_of_cases
    from tocsin.model.detector import Stage
    from tocsin.model.errors import ConfigError

    spec = catalog.detector(name)
    if spec.stage is not Stage.SHADOW:
        first = {Stage.LIVE: "is live already", Stage.DRAFT: 'is a draft; put stage="shadow" into the file first'}
        what = first.get(spec.stage, 'is retired; put stage="shadow" into the file first')
        raise ConfigError.one(spec.path, what, key="stage")
    if faults := faults_of_cases([spec]):
        raise ConfigError(faults)
    return spec


def _run_cases(spec: DetectorSpec) -> None:
    """Run the cases; leaves with exit code 1 if one fails."""
    if not spec.has_one_source:
        note("it reads several sources, and cases are timelines of one: no case was run", style="yellow")
        return
    try:
        test_command.test([spec.name])
    except typer.Exit:
        note("not promoted: not all cases pass", style="red")
        raise


def _show(evidence: ShadowEvidence) -> None:
    since = f"first ran {utc(evidence.since)}" if evidence.since else "has never run here"
    late = "" if evidence.late is None else f"; {evidence.late:,} late events dropped since its last start"
    line(f"{evidence.detector}: version {evidence.version} {since}{late}", style="bold")
    columns = ("DAY", "HOURS", "FINDINGS", "URGENT", "ALERTS", "QUARANTINED", "STREAM AND BACKFILL")
    table(columns, map(_row, evidence.days), empty="no day in shadow")
    if days := len(evidence.days):
        alerts, findings = (sum(getattr(one, key) for one in evidence.days) for key in ("alerts", "findings"))
        line(f"as live it would open {alerts / days:.1f} alerts a day; {findings / days:.1f} findings a day\n")


def _row(one: ShadowDay) -> tuple[object, ...]:
    parity = None
    if one.parity is not None:
        same, differing, unexplained = one.parity
        parity = f"{same:,} agree" + (f", {differing:,} differ, {unexplained:,} unexplained" if differing else "")
    return (one.day, f"{one.hours:.1f}", one.findings, one.urgent, one.alerts, one.quarantined, parity)


def _show_plan(name: str) -> None:
    from tocsin.cli.operate.plan_command import plan
    from tocsin.model.names import detector_job

    plan(detector_job(name))
