"""Run a detector on history, whatever its limits are, and say what these and others would be worth."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from tocsin.alerts.alert_policy import dedup_key
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
from tocsin.alerts.notify.mail.chart import GRID, LIMIT_COLOURS, LINE, WIDTH, Panel, score_ticks
from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import canonical_entity
from tocsin.declare.model.sizes import number
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import SCORE_TIMES
from tocsin.history.backfill.trial import DayChoice, DetectorTrial, score_days
from tocsin.history.backfill.trial_report import OpenPart, declared_limits
from tocsin.history.places import begin, end

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw


MOST_SCORES = 262_144
"""So many of the highest scores are looked at one by one, or all above the lowest limit if these are more."""
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
        limits: the ladder; by default it follows from the scores.
        alerts_a_day: choose a limit with at most so many, on the average of the days.
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
    days, limits = sorted(trial.events), declared_limits(spec.levels)
    windows = highest_scores(table, spec, request.limits)
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
    chosen = None
    if request.alerts_a_day is not None:
        chosen = choose_limit(windows, spec.dedup_period, request.alerts_a_day * days)
    limits = request.limits or ladder_of([w.score for w in windows], declared_limits(spec.levels).values())
    return chosen, sorted({*limits, *([] if chosen is None else [chosen])})


def highest_scores(table: pa.Table, spec: DetectorSpec, limits: Iterable[float] = ()) -> list[ScoredWindow]:
    """Give the `MOST_SCORES` highest of the scores in `table`, as `score_days` writes it, and all that limits find.

    These limits are those of `spec` and `limits`.
    """
    from pyarrow import compute

    if table.num_rows > MOST_SCORES:
        places = compute.select_k_unstable(table, MOST_SCORES, [("score", "descending")])
        lowest = min(compute.min(table["score"].take(places)).as_py(), spec.levels.lowest, *limits)
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
    counts = Counter(window.key for window in findings)
    best = {window.key: window.score for window in sorted(findings, key=lambda window: window.score)}
    order = sorted(counts, key=lambda key: (-counts[key], -best[key], key))[:_TOP]
    return [TopEntity(entity=json.loads(key), findings=counts[key], highest_score=best[key]) for key in order]


_HEIGHT, _LEFT, _RIGHT = 860, 120, WIDTH - 60
_PRECISION, _RECALL, _BAR = "#6a1b9a", "#00796b", "#b9cdf3"
_MOST_LABELS = 7


def draw_evaluation(
    scores: Sequence[ScoredWindow], limits: Mapping[str, float], ladder: Sequence[LimitQuality]
) -> Image:
    """Draw `scores`, of which there are some, beside the `limits` by level, and the alerts a day of the `ladder`.

    Precision and recall are lines from 0 to 1, where they are known.
    """
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (WIDTH, _HEIGHT), "white")
    pen = ImageDraw.Draw(picture)
    _draw_scores(pen, scores, limits)
    _draw_ladder(pen, ladder)
    return picture


def _draw_scores(pen: ImageDraw, scores: Sequence[ScoredWindow], limits: Mapping[str, float]) -> None:
    times, values = [w.start.timestamp() for w in scores], [*(w.score for w in scores), *limits.values()]
    low, top = min(0.0, *values), max(values)
    high = top + 0.1 * (top - low) if top > low else low + 1
    panel = Panel(pen, _LEFT, _RIGHT, min(times), max(*times, min(times) + 1), low, high, 40, 380)
    panel.words((_LEFT, 8), f"scores of {len(scores):,} windows or events, the highest", "lt")
    for tick in score_ticks(low, high):
        panel.level_line(tick, GRID, 2)
        panel.words((_LEFT - 8, panel.y(tick)), number(tick), "rm")
    for x, y in {(round(panel.x(time)), round(panel.y(w.score))) for time, w in zip(times, scores, strict=True)}:
        pen.rectangle((x - 1, y - 1, x + 1, y + 1), LINE)
    for level, limit in limits.items():
        panel.level_line(limit, LIMIT_COLOURS[level], 3, 15)
        panel.words((_RIGHT, panel.y(limit) - 4), f"{level} above {number(limit)}", "rs", LIMIT_COLOURS[level])
    for share, anchor in ((0.0, "lt"), (0.5, "mt"), (1.0, "rt")):
        time = panel.begin + share * (panel.end - panel.begin)
        panel.words((panel.x(time), 390), f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}", anchor)


def _draw_ladder(pen: ImageDraw, ladder: Sequence[LimitQuality]) -> None:
    counts = [rung.alerts_a_day for rung in ladder]
    least = min((count for count in counts if count), default=1.0)
    high = math.log10(max(*counts, least, 10 * least) / least) + 1.3
    panel = Panel(pen, _LEFT, _RIGHT, -0.6, len(ladder) - 0.4, 0, high, 490, 780)
    panel.words((_LEFT, 450), "alerts a day above each limit", "lt")
    for place, rung in enumerate(ladder):
        height = math.log10(rung.alerts_a_day / least) + 1 if rung.alerts else 0
        pen.rectangle((panel.x(place - 0.35), panel.y(height), panel.x(place + 0.35), panel.bottom), _BAR)
        if place % math.ceil(len(ladder) / _MOST_LABELS) == 0:
            panel.words((panel.x(place), panel.y(height) - 4), number(rung.alerts_a_day), "ms")
            panel.words((panel.x(place), 790), number(rung.limit), "mt")
    panel.words(((_LEFT + _RIGHT) / 2, _HEIGHT - 8), "limit", "ms")
    shares = Panel(pen, _LEFT, _RIGHT, -0.6, len(ladder) - 0.4, 0, 1, 520, 780)
    for name, colour, right in (("precision", _PRECISION, 240), ("recall", _RECALL, 120)):
        known = [(place, share) for place, rung in enumerate(ladder) if (share := getattr(rung, name)) is not None]
        pen.line([(shares.x(place), shares.y(share)) for place, share in known], colour, 4, joint="curve")
        for share in (0, 1) if known else ():
            shares.words((_RIGHT + 8, shares.y(share)), str(share), "lm")
        if known:
            shares.words((_RIGHT - right, 450), name, "lt", colour)


_TIMES = ("from", "to")
_MOST = 100_000
_INSTANT = timedelta(microseconds=1)


def read_incidents(path: Path, spec: DetectorSpec) -> list[Label]:
    """Read the CSV of incidents at `path`: the columns `from` and `to`, in UTC unless they say otherwise, and who.

    Who it is, is in the columns by which `spec` tells alerts apart; or in `entity`, as the value of a single one, or as
    JSON such as {"user_id": "ann", "host": "web.1"}.

    Raises:
        ConfigError: the file cannot be read, holds no incident, or a line of it is wrong; a retry does not help.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            lacking = [name for name in _TIMES if name not in (rows.fieldnames or ())]
            if lacking or not {"entity", *_who(spec)} & {*(rows.fieldnames or ())}:
                what = f"its first line must name the columns entity (or {', '.join(_who(spec))}), from and to"
                raise ConfigError.one(path, f"{what}, not {', '.join(rows.fieldnames or ['nothing'])}", line=1)
            labels = [_label(path, rows.line_num, row, spec) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError.one(
            path, f"cannot be read as CSV in UTF-8: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not labels:
        raise ConfigError.one(path, "holds no incident, only the names of columns")
    return labels


def read_verdicts(settings: Settings, spec: DetectorSpec) -> list[Label]:
    """Read the verdicts given on alerts of `spec`: `true` is an incident; `expected` and `false` are none.

    TransientError if the alerts DB cannot be read now; a retry helps.
    """
    room = _INSTANT if spec.window is None else timedelta(0)  # an event has no length, and a label needs one
    with closing(open_store(settings)) as database:
        alerts = list_alerts(database, AlertFilter(detector=spec.name, state="resolved", limit=_MOST))
    return [
        Label(canonical_entity(alert.entity), alert.first_seen, alert.last_seen + room, alert.verdict == "true")
        for alert in alerts
        if alert.verdict
    ]


def beside(incidents: Iterable[Label], verdicts: Iterable[Label]) -> list[Label]:
    """Leave out the verdicts that an alert was right about one of the `incidents`, which would else count twice."""
    known: dict[str, list[Label]] = defaultdict(list)
    for incident in incidents:
        known[incident.key].append(incident)
    return [
        verdict
        for verdict in verdicts
        if not verdict.is_real
        or not any(one.start < verdict.end and verdict.start < one.end for one in known[verdict.key])
    ]


def _who(spec: DetectorSpec) -> tuple[str, ...]:
    return spec.dedup or spec.entity


def _label(path: Path, line: int, row: Mapping[str, str | None], spec: DetectorSpec) -> Label:
    def refuse(what: str) -> ConfigError:
        return ConfigError.one(path, what, line=line)

    if any(value is None for value in row.values()) or None in row:
        raise refuse("has other columns than the first line names")
    times = []
    for name in _TIMES:
        try:
            moment = datetime.fromisoformat(str(row[name]).strip())
        except ValueError:
            raise refuse(f"{name}: '{row[name]}' is no time; write 2026-01-31T14:05:00Z") from None
        times.append(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    start, end = times
    if end <= start:
        raise refuse(f"from: {row['from']} is not before to: {row['to']}")
    entity = _entity(row, spec)
    if lacking := [name for name in _who(spec) if not entity.get(name)]:
        raise refuse(f"does not say which {', '.join(lacking)}")
    return Label(dedup_key(entity, spec), start, end)


def _entity(row: Mapping[str, str | None], spec: DetectorSpec) -> dict[str, str]:
    """Read who it is; empty if that cannot be told."""
    who, text = _who(spec), row.get("entity") or ""
    if "entity" not in row or "entity" in who:
        return {name: row.get(name) or "" for name in who}
    if len(who) == 1 and not text.startswith("{"):
        return {who[0]: text}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {name: str(found[name]) for name in who if name in found} if isinstance(found, dict) else {}
