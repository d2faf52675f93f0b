"""`tocsin evaluate`: run a detector on history and keep nothing."""

from __future__ import annotations

import json as json_text
import math
import os
from collections import defaultdict
from datetime import datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.backfill_command import together
from tocsin.cli.output import counted, line, note, table, utc, write
from tocsin.cli.project import load_settings
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.sizes import number

if TYPE_CHECKING:
    from tocsin.alerts.evaluation.evaluation_run import Evaluation, LabelCount
    from tocsin.alerts.evaluation.scoring import LimitQuality
    from tocsin.declare.settings import Settings
    from tocsin.history.backfill.trial import DayChoice, TrialRun
    from tocsin.history.backfill.trial_report import DayDiff, Diff

_SHOWN = 40
_SHOWN_UNSEEN = 5
_Detector = Annotated[str, typer.Argument(metavar="NAME", help="The detector, in any stage.")]
_Days = Annotated[
    int | None,
    typer.Option("--days", min=1, max=3650, help="Without --from and --to: so many of the latest; default: 60, or 7."),
]
_Today = Annotated[
    bool, typer.Option("--today", help="Also the current day, from Kafka, up to the last window that is closed.")
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="VERSION|FILE",
        help="Compare with this draft as the version to come, with this version as the one before, or with `previous`: "
        "the one that ran before. Exit code 1 when they differ.",
    ),
]


_Labels = Annotated[
    Path | None, typer.Option("--labels", metavar="CSV", help="Known incidents, all of them: entity, from, to.")
]
_AlertsADay = Annotated[
    float | None, typer.Option("--alerts-a-day", min=0, metavar="N", help="Choose a limit that leaves at most so many.")
]
_Limits = Annotated[
    str | None, typer.Option("--limits", metavar="N,N,...", help="These limits, and not a ladder made of the scores.")
]
_Picture = Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Also draw scores and limits.")]
_Scores = Annotated[
    Path | None,
    typer.Option("--scores", metavar="PARQUET", help="Only write every score to this file, whatever the limits are."),
]


def evaluate(
    detector: _Detector,
    labels: _Labels = None,
    alerts_a_day: _AlertsADay = None,
    limits: _Limits = None,
    out: _Picture = None,
    against: _Against = None,
    scores: _Scores = None,
    days: _Days = None,
    first: options.FirstDay = None,
    last: options.LastDay = None,
    today: _Today = False,
    json: options.Json = False,
) -> None:
    """Show what a detector finds on days of history, and what other limits would be worth. Stores nothing.

    Findings and alerts of each day, as if it were live, and the entities with most; then for each limit of a ladder the
    alerts a day. With --labels, and with the verdicts that people gave on alerts: precision, recall and delay.

    With --against show the findings that two versions do not share instead. --scores writes the columns of the entity,
    as text, `window_start`, `window_end` (both the time of an event without windows) and `score`. Starts Spark.
    """
    from tocsin.alerts.evaluation.evaluation_run import EvaluationRequest, run_evaluation

    settings, choice = _settings_for(detector), _choice(days or (7 if against else 60), first, last, today)
    about_limits = any((labels, alerts_a_day is not None, limits, out))
    if against is not None:
        _refuse_with("--against", "compares what two versions find", about_limits or scores)
        _compare(settings, detector, against, choice, json=json)
        return
    if scores is not None:
        _refuse_with("--scores", "writes a file alone, without --json", about_limits or json)
        _write_scores(settings, detector, choice, _writable(scores))
        return
    ladder, picture = _numbers(limits or ""), out and _writable(out)
    found = run_evaluation(settings, EvaluationRequest(detector, choice, labels, ladder, alerts_a_day, picture))
    write(found, _show, json=json)
    if not found.scores:
        what = f"nothing can be said of limits{', and there is no picture' if out else ''}"
        note(f"{detector}: no row of these days has an entity and a score, so {what}", style="yellow")


def _refuse_with(option: str, what: str, others: object) -> None:
    if others:
        raise ConfigError.one(option, f"{what}; leave out what is about limits, and other files to write")


def _settings_for(detector: str) -> Settings:
    """Load the settings, in the environment of `detector`."""
    from tocsin.platform.environments import go_on_by_its_python

    go_on_by_its_python(settings := load_settings(), detector)
    return settings


def _compare(settings: Settings, detector: str, against: str, choice: DayChoice, *, json: bool) -> None:
    from tocsin.history.backfill.trial import compare_versions

    result = compare_versions(settings, detector, None if against == "previous" else against, choice)
    write(result, _show_diff, json=json)
    if result.changes:
        raise typer.Exit(1)


def _write_scores(settings: Settings, detector: str, choice: DayChoice, out: Path) -> None:
    from tocsin.history.backfill.trial import score_days

    run = score_days(settings, detector, choice, out)
    _tell_days(run)
    (trial,) = run.trials
    events = sum(trial.events.values())
    line(f"{out}: scores of {counted(len(trial.events), 'day')}, {counted(events, 'event')}, in {span(trial.seconds)}")


def _writable(path: Path) -> Path:
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError.one(path, "cannot be written: it needs the name of a file in a folder that is there")
    return path


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise typer.BadParameter(f"'{text}' is no list of numbers such as 10,20.5", param_hint="'--limits'")
    return numbers


def _choice(days: int, first: datetime | None, last: datetime | None, today: bool) -> DayChoice:
    from tocsin.history.backfill.trial import DayChoice

    return DayChoice(first=first and first.date(), last=last and last.date(), most=days, today=today)


def _show(found: Evaluation) -> None:
    _tell_days(found)
    rows = [(day.day, f"{day.events:,}", day.findings, day.urgent, day.alerts) for day in found.days]
    table(("DAY", "EVENTS", "FINDINGS", "URGENT", "ALERTS"), rows, empty="no day")
    line("")
    top = [(_entity(entity.entity), entity.findings, number(entity.highest_score)) for entity in found.top]
    table(("ENTITY", "FINDINGS", "HIGHEST SCORE"), top, empty="no findings")
    line("")
    names: dict[float, list[str]] = defaultdict(list)
    for level, limit in found.limits.items():
        names[limit].append(level)
    if found.chosen is not None:
        names[found.chosen].append("chosen")
    ladder = [(_figure(rung.limit), ", ".join(names[rung.limit]), *_worth(rung)) for rung in found.ladder]
    columns = ("LIMIT", "", "ALERTS", "A DAY", "PRECISION", "RECALL", "MEDIAN DELAY")
    known = len(columns) if found.labels.incidents or found.labels.verdicts else len(columns) - 3
    table(columns[:known], [row[:known] for row in ladder], empty="no scores")
    _tell_labels(found.labels)
    line("")
    events = sum(day.events for day in found.days)
    sums = [sum(getattr(day, name) for day in found.days) for name in ("findings", "alerts")]
    line(f"{counted(sums[0], 'finding')} and {counted(sums[1], 'alert')} in {counted(len(found.days), 'day')}")
    line(f"{counted(events, 'event')} read in {span(found.seconds)}, {found.cpu_seconds:,.1f} CPU-seconds")
    if found.chosen is not None:
        (rung,) = (rung for rung in found.ladder if rung.limit == found.chosen)
        line(f"a limit of {_figure(found.chosen)} leaves {number(rung.alerts_a_day)} alerts a day")


def _worth(rung: LimitQuality) -> tuple[str, ...]:
    shares = ["" if share is None else f"{share:.1%}" for share in (rung.precision, rung.recall)]
    delay = "" if rung.delay_seconds is None else span(rung.delay_seconds)
    return (f"{rung.alerts:,}", number(rung.alerts_a_day), *shares, delay)


def _figure(limit: float) -> str:
    """Write a limit so that it can be declared: rounded, other scores would be above it."""
    return repr(limit).removesuffix(".0")


def _tell_labels(labels: LabelCount) -> None:
    if labels.incidents or labels.verdicts:
        line(f"compared with {counted(labels.incidents, 'incident')} and {counted(labels.verdicts, 'verdict')}")
    if labels.outside:
        note(f"{counted(labels.outside, 'label')} left out: outside of these days", style="yellow")
    if labels.unseen:
        first = ", ".join(_entity(json_text.loads(who)) for who in labels.unseen[:_SHOWN_UNSEEN])
        more = ", ..." if len(labels.unseen) > _SHOWN_UNSEEN else ""
        what = "have no score on these days, so no limit finds them"
        note(f"{len(labels.unseen)} of those labelled {what}: {first}{more}", style="yellow")


def _show_diff(found: Diff) -> None:
    _tell_days(found)
    rows = [
        (utc(change.window_start), _entity(change.entity), change.before, change.after)
        for change in found.changes[:_SHOWN]
    ]
    columns = ("WINDOW", "ENTITY", f"BEFORE ({found.before})", f"AFTER ({found.after})")
    table(columns, rows, empty=f"both versions find the same on {counted(found.days, 'day')}")
    if len(found.changes) > _SHOWN:
        line(f"and {len(found.changes) - _SHOWN:,} more; --json has all")
    if found.changes:
        line("")
        days = [(day.day, *_counts(day)) for day in found.by_day]
        table(("DAY", "ALIKE", "GONE", "NEW", "OTHER LEVEL", "OTHER SCORE"), days, empty="")
    same, gone, new, level, score = (sum(column) for column in zip(*map(_counts, found.by_day), strict=True))
    line(f"{counted(found.days, 'day')}: {same:,} alike, {gone:,} gone, {new:,} new, {level:,} with another level, "
         f"{score:,} with another score alone")  # fmt: skip


def _counts(diff: DayDiff) -> tuple[int, int, int, int, int]:
    return (diff.same, diff.gone, diff.new, diff.other_level, diff.other_score)


def _tell_days(found: Evaluation | Diff | TrialRun) -> None:
    for sentence in together(("left out", day, why) for day, why in found.left_out.items()):
        note(sentence, style="yellow")
    if (part := found.open) is not None:
        since = f"from {utc(part.since)} " if part.since.time() != time.min else ""
        line(f"{part.day}: from Kafka, {since}up to {utc(part.until)}; later windows are not closed yet")


def _entity(entity: dict[str, str]) -> str:
    return ", ".join(entity.values())
