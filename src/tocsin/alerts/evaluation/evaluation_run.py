"""Run a detector on history, whatever its limits are, and say what these and others would be worth."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from tocsin.alerts.alert_policy import dedup_key
from tocsin.alerts.evaluation.evaluation_chart import draw_evaluation
from tocsin.alerts.evaluation.labels import beside, read_incidents, read_verdicts
from tocsin.alerts.evaluation.scoring import (
    Label,
    Labels,
    LimitQuality,
    ScoredWindow,
    alerts_above,
    choose_limit,
    evaluate,
    ladder_of,
)
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import SCORE_TIMES
from tocsin.history.backfill.trial import DayChoice, DetectorTrial, score_days
from tocsin.history.backfill.trial_report import OpenPart, declared_limits
from tocsin.history.places import begin, end

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SCORES = 262_144
"""So many of the highest scores are looked at one by one, or all above the lowest declared limit if these are more."""
_TOP = 10


class DayCount(BaseModel, frozen=True):
    """One UTC day: its events, and the findings and alerts that the detector would have made of them."""

    day: date
    events: int
    findings: int
    urgent: int
    alerts: int


class TopEntity(BaseModel, frozen=True):
    """One of the entities with most findings."""

    entity: dict[str, str]
    findings: int
    highest_score: float


class LabelCount(BaseModel, frozen=True):
    """The labels that were compared with.

    Attributes:
        incidents, verdicts: how many come from the file, and from people's answers to alerts.
        outside: how many others lie outside of the days.
        unseen: who of the incidents has no score on these days at all, and so cannot be found at any limit.
    """

    incidents: int
    verdicts: int
    outside: int
    unseen: list[str]


class Evaluation(BaseModel, frozen=True):
    """A detector on days of history.

    Attributes:
        detector, version: which one.
        days: the oldest first.
        open: which part of the current day is among them; null if none.
        left_out: days that were asked for and cannot run, and why.
        scores: how many rows have a score, whatever the limits are.
        top: the entities with most findings.
        limits: of the detector, by level.
        labels: what was known.
        ladder: those limits, and others up to the highest scores, the lowest first.
        chosen: the lowest limit with at most as many alerts a day as were asked for; null if none were, or without
            scores.
        cpu_seconds, seconds: that it took, without the start of Spark.
    """

    detector: str
    version: str
    days: list[DayCount]
    open: OpenPart | None = None
    left_out: dict[date, str] = {}
    scores: int
    top: list[TopEntity]
    limits: dict[str, float]
    labels: LabelCount
    ladder: list[LimitQuality]
    chosen: float | None = None
    cpu_seconds: float
    seconds: float


@dataclass(frozen=True)
class EvaluationRequest:
    """What is to be evaluated.

    Attributes:
        incidents: a file for `read_incidents`.
        limits: the ladder; by default it follows from the scores.
        alerts_a_day: choose a limit with at most so many, on the average of the days.
        picture: the file to draw to; see `evaluation_chart`.
    """

    detector: str
    days: DayChoice
    incidents: Path | None = None
    limits: Sequence[float] = ()
    alerts_a_day: float | None = None
    picture: Path | None = None


def run_evaluation(settings: Settings, request: EvaluationRequest) -> Evaluation:
    """Run and judge the detector of `request`.

    Raises:
        ConfigError: there is no such detector, its labels are wrong, no day can run, or its query cannot.
        TransientError: the catalogue of history, Kafka or the alerts DB does not answer; a retry helps.
    """
    from pyarrow import parquet

    spec = read_catalog(settings.project).detector(request.detector)
    incidents = [] if request.incidents is None else read_incidents(request.incidents, spec)
    verdicts = beside(incidents, read_verdicts(settings, spec))
    with tempfile.TemporaryDirectory(prefix="tocsin-") as own:
        run = score_days(settings, spec.name, request.days, path := Path(own) / "scores.parquet")
        table = parquet.read_table(path)
    (trial,) = run.trials
    days, windows, limits = sorted(trial.events), highest_scores(table, spec), declared_limits(spec.levels)
    labels = Labels([one for one in [*incidents, *verdicts] if is_within(one, days)], request.incidents is not None)
    chosen, ladder = _ladder(windows, request, spec, len(days))
    qualities = evaluate(windows, labels, ladder, spec.dedup_period, len(days))
    if request.picture is not None and windows:
        draw_evaluation(windows, limits, qualities).save(request.picture, "PNG")
    inside = [label for label in incidents if is_within(label, days)]
    findings = [window for window in windows if window.score > spec.levels.lowest]
    return Evaluation(
        detector=spec.name,
        version=spec.version,
        days=_day_counts(trial, findings),
        open=run.open,
        left_out=run.left_out,
        scores=table.num_rows,
        top=_top(findings),
        limits=limits,
        labels=_count(inside, labels, len(incidents) + len(verdicts), _keys(table, spec)),
        ladder=qualities,
        chosen=chosen,
        cpu_seconds=round(trial.cpu_seconds, 2),
        seconds=round(trial.seconds, 2),
    )


def _count(inside: list[Label], labels: Labels, every: int, keys: set[str]) -> LabelCount:
    """Count the incidents `inside` the days, the `labels` there, and what of `every` label is not among them."""
    count = len(labels.labels)
    unseen = sorted({label.key for label in inside} - keys)
    return LabelCount(incidents=len(inside), verdicts=count - len(inside), outside=every - count, unseen=unseen)


def _ladder(
    windows: list[ScoredWindow], request: EvaluationRequest, spec: DetectorSpec, days: int
) -> tuple[float | None, list[float]]:
    """Choose the limit that was asked for, if any, and the ladder, of which it is a part."""
    chosen = None
    if request.alerts_a_day is not None:
        chosen = choose_limit(windows, spec.dedup_period, request.alerts_a_day * days)
    limits = request.limits or ladder_of([w.score for w in windows], declared_limits(spec.levels).values())
    return chosen, sorted({*limits, *([] if chosen is None else [chosen])})


def highest_scores(table: pa.Table, spec: DetectorSpec) -> list[ScoredWindow]:
    """Give the `MOST_SCORES` highest of the scores in `table`, as `score_days` writes it, or all findings of `spec`."""
    from pyarrow import compute

    if table.num_rows > MOST_SCORES:
        places = compute.select_k_unstable(table, MOST_SCORES, [("score", "descending")])
        lowest = min(compute.min(table["score"].take(places)).as_py(), spec.levels.lowest)
        table = table.filter(compute.field("score") >= lowest)
    entities = zip(*(table[name].to_pylist() for name in spec.entity), strict=True)
    key = cache(lambda values: dedup_key(dict(zip(spec.entity, values, strict=True)), spec))
    times_and_scores = (table[name].to_pylist() for name in (*SCORE_TIMES, "score"))
    return [ScoredWindow(key(who), *rest) for who, *rest in zip(entities, *times_and_scores, strict=True)]


def _keys(table: pa.Table, spec: DetectorSpec) -> set[str]:
    who = table.group_by(spec.dedup or spec.entity).aggregate([]).to_pylist()
    return {dedup_key(entity, spec) for entity in who}


def is_within(label: Label, days: Iterable[date]) -> bool:
    """Return whether any of `label` lies on one of these UTC days."""
    return any(label.start < end(day) and begin(day) < label.end for day in days)


def _day_counts(trial: DetectorTrial, findings: list[ScoredWindow]) -> list[DayCount]:
    """Count by UTC day: findings by their start, alerts by that of their first one."""
    levels, ordered = trial.spec.levels, sorted(findings, key=lambda window: window.start)
    alerts = alerts_above(ordered, levels.lowest, trial.spec.dedup_period)
    by_day = Counter(window.start.date() for window in findings)
    urgent = Counter(window.start.date() for window in findings if levels.reached(window.score) == "urgent")
    opened = Counter(alert[0].start.date() for alert in alerts)
    return [
        DayCount(day=day, events=trial.events[day], findings=by_day[day], urgent=urgent[day], alerts=opened[day])
        for day in sorted(trial.events)
    ]


def _top(findings: list[ScoredWindow]) -> list[TopEntity]:
    """Give those with most findings, of equal ones that with the highest score first."""
    counts = Counter(window.key for window in findings)
    best = {window.key: window.score for window in sorted(findings, key=lambda window: window.score)}
    order = sorted(counts, key=lambda key: (-counts[key], -best[key], key))[:_TOP]
    return [TopEntity(entity=json.loads(key), findings=counts[key], highest_score=best[key]) for key in order]
