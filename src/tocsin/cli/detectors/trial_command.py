"""`tocsin backtest` and `tocsin diff`: what a detector would have found on history; nothing of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, number, table, utc
from tocsin.model.durations import span

if TYPE_CHECKING:
    from tocsin.backfill.trial import Trial
    from tocsin.backfill.trial_report import Backtest, Diff
    from tocsin.model.detector import DetectorSpec
    from tocsin.model.finding import Finding
    from tocsin.project.settings import Settings

_SHOWN = 40
_Detector = Annotated[str, typer.Option("--detector", help="Its name; any stage will do.")]
_Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="On so many days, the latest that are published.")]
_With = Annotated[
    str | None,
    typer.Option("--with", metavar="VERSION|FILE", help="Compare with it; else with the version that ran before."),
]


def backtest(detector: _Detector, days: _Days = 60, json: options.Json = False) -> None:
    """Show what a detector finds on days of history: findings and alerts per day, top entities, cost. Keeps nothing.

    Alerts are counted as they would be if it were live. Takes a Spark session.
    """
    from tocsin.backfill.backfill_status import declared
    from tocsin.backfill.trial import try_out
    from tocsin.project.settings import load_settings

    settings = load_settings()
    source, (spec,) = declared(settings, [detector])
    (trial,) = try_out(settings, source, [spec], days)
    found = _backtest(trial)
    if json:
        as_json(found)
    else:
        _show(found)


def diff(detector: _Detector, other: _With = None, days: _Days = 7, json: options.Json = False) -> None:
    """Show how the file of a detector differs, in what it finds on history, from another version. Keeps nothing.

    Exit code 1 when they differ. Takes a Spark session.
    """
    from tocsin.backfill.backfill_status import declared
    from tocsin.backfill.trial import try_out
    from tocsin.backfill.trial_report import Diff, changes
    from tocsin.project.settings import load_settings

    settings = load_settings()
    source, (spec,) = declared(settings, [detector])
    before = _other(settings, spec, other)
    old, new = try_out(settings, source, [before, spec], days)
    same, found = changes(_all(old), _all(new))
    result = Diff(
        detector=detector, before=before.version, after=spec.version, days=len(new.found), same=same, changes=found
    )
    if json:
        as_json(result)
    else:
        _show_diff(result)
    if found:
        raise typer.Exit(1)


def _backtest(trial: Trial) -> Backtest:
    from tocsin.alerts.alert_count import alerts_by_day
    from tocsin.backfill.trial_report import Backtest, day_counts, top_entities

    alerts = alerts_by_day(_all(trial), trial.spec.dedup_period)
    return Backtest(
        detector=trial.spec.name,
        version=trial.spec.version,
        days=day_counts(trial.found, trial.events, alerts),
        top=top_entities(_all(trial)),
        cpu_seconds=round(trial.cpu_seconds, 2),
        seconds=round(trial.seconds, 2),
    )


def _show(found: Backtest) -> None:
    rows = [(one.day, f"{one.events:,}", one.findings, one.urgent, one.alerts) for one in found.days]
    table(("DAY", "EVENTS", "FINDINGS", "URGENT", "ALERTS"), rows, empty="no day")
    line("")
    top = [(_entity(one.entity), one.findings, number(one.highest_score)) for one in found.top]
    table(("ENTITY", "FINDINGS", "HIGHEST SCORE"), top, empty="it finds nothing")
    line("")
    events = sum(one.events for one in found.days)
    sums = [sum(getattr(one, name) for one in found.days) for name in ("findings", "alerts")]
    line(f"{counted(sums[0], 'finding')} and {counted(sums[1], 'alert')} in {counted(len(found.days), 'day')}")
    line(f"{counted(events, 'event')} read in {span(found.seconds)}, {found.cpu_seconds:,.1f} CPU-seconds")


def _other(settings: Settings, spec: DetectorSpec, other: str | None) -> DetectorSpec:
    """The version to compare with: a file, a kept version, or the latest kept one that is another."""
    from tocsin.model.errors import ConfigError
    from tocsin.project.declaration import read_spec
    from tocsin.runtime.detector_versions import kept_spec, kept_versions

    if other is not None and Path(other).suffix == ".py":
        found = read_spec(Path(other))
    elif other is not None:
        found = kept_spec(settings, spec.name, other)
    else:
        earlier = [one for one in kept_versions(settings, spec.name) if one.version != spec.version]
        if not earlier:
            what = "no other version of it ran here; name a file: --with FILE"
            raise ConfigError.one(spec.name, what)
        found = kept_spec(settings, spec.name, max(earlier, key=lambda one: one.last_at).version)
    if found.source != spec.source:
        raise ConfigError.one(found.path, f"reads {found.source}, and {spec.name} reads {spec.source}", key="source")
    return found


def _show_diff(found: Diff) -> None:
    rows = [(utc(one.window_start), _entity(one.entity), one.before, one.after) for one in found.changes[:_SHOWN]]
    columns = ("WINDOW", "ENTITY", f"BEFORE ({found.before})", f"AFTER ({found.after})")
    table(columns, rows, empty=f"both versions find the same on {counted(found.days, 'day')}")
    if len(found.changes) > _SHOWN:
        line(f"and {len(found.changes) - _SHOWN:,} more; --json has all")
    changed = len(found.changes) - found.only_before - found.only_after
    line(f"{counted(found.days, 'day')}: {found.same:,} alike, {found.only_before:,} gone, {found.only_after:,} new, "
         f"{changed:,} with another level or score")  # fmt: skip


def _all(trial: Trial) -> list[Finding]:
    return [one for day in sorted(trial.found) for one in trial.found[day]]


def _entity(entity: dict[str, str]) -> str:
    return ", ".join(entity.values())
