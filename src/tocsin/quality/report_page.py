"""The pages for people: one for each judged day, and the grid of all. Self-contained HTML, which loads nothing.

Everything that came from data passes `printable` and Jinja's escaping on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tocsin.declare.model.sizes import printable
from tocsin.declare.model.source import Source
from tocsin.quality.data_drift import drift_checks, usual_figures
from tocsin.quality.day_profile import Profile
from tocsin.quality.suites.suite import shown
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict, judge_or_accept
from tocsin.quality.verdict_files import Records, VerdictRecord, detector_of

_pages = Environment(
    loader=PackageLoader("tocsin.quality"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
)
_STRIP = 14
_GRID = 60
_TROUBLED = 40
_WORDS = {Severity.PASS: "published", Severity.WARNING: "published with warnings", Severity.CRITICAL: "not published"}
_SIGNS = {Severity.PASS: "✓", Severity.WARNING: "!", Severity.CRITICAL: "✕"}
_UNJUDGED = {"link": "", "tone": "", "words": "not judged", "sign": ""}
_UNSEALED = {"tone": "critical", "words": "not sealed", "sign": "?"}
_STAGES = {
    CheckStage.DAY: "Rules for the day",
    CheckStage.ROW: "Rules for rows",
    CheckStage.FINDING: "Rules for findings",
}


def day_page(record: VerdictRecord, records: Records, before: Sequence[Profile], source: Source) -> str:
    """Make the page of one verdict of `record`, which leads to other days in `records`.

    `before` are profiles of the same weekday of the weeks before.
    """
    verdict, profile = record.verdict, record.profile
    return _pages.get_template("day.html").render(
        subject=verdict.subject,
        title=source.title,
        owner=source.owner,
        day=str(verdict.day),
        date=f"{verdict.day:%A, %-d %B %Y}",
        weekday=f"{verdict.day:%A}",
        tone=str(_tone(verdict)),
        words=_words(verdict),
        sentence=_sentence(verdict),
        commands=judge_or_accept(source.name, verdict.day) if _is_refused(verdict) else (),
        strip=_strip(verdict, records),
        tiles=tiles(profile, before) if profile else [],
        hours=by_hour(profile, before) if profile else None,
        failed=[_row(check) for check in verdict.failed],
        groups=_groups(verdict.checks),
        files=f"expectations/{source.name}.*.json",
        drift=drift(profile, before) if profile else None,
        known=len(before),
        columns=columns(profile, source) if profile else [],
        run=f"Judged {verdict.judged_at:%Y-%m-%d %H:%M:%S} UTC, version {verdict.run_id}",
        json=f"{verdict.run_id}.json",
    )


def index_page(records: Records, reasons: Mapping[str, Mapping[date, str]]) -> str:
    """The page of all subjects and the last 60 days; `reasons` say by source why days could not be sealed."""
    subjects = sorted({*records.subjects(), *reasons})
    verdicts = {subject: _verdicts(records, subject) for subject in subjects}
    unsealed = {subject: reasons.get(subject, {}) for subject in subjects}
    ends = [day for known in (verdicts, unsealed) for of in known.values() for day in of]
    days = [max(ends) - timedelta(days=back) for back in range(_GRID - 1, -1, -1)] if ends else []
    months = groupby(days, key=lambda day: f"{day:%B %Y}")
    troubled = [one for name in verdicts for one in _troubled(name, verdicts[name], unsealed[name])]
    return _pages.get_template("index.html").render(
        rows=[
            {"name": name, "days": [_cell(of, unsealed[name], day) | {"first": day.day == 1 or day == days[0]}
                                    for day in days]}
            for name, of in verdicts.items() if of or unsealed[name]
        ],
        months=[{"name": name, "days": len(list(of))} for name, of in months],
        troubled=sorted(troubled, key=lambda one: one["date"], reverse=True)[:_TROUBLED],
    )  # fmt: skip


def _verdicts(records: Records, subject: str) -> dict[date, Verdict]:
    found = {day: records.latest(subject, day) for day in records.days(subject)[:_GRID]}
    return {day: record.verdict for day, record in found.items() if record is not None}


def _cell(verdicts: Mapping[date, Verdict], unsealed: Mapping[date, str], day: date) -> dict[str, Any]:
    shown = _linked(verdicts[day]) if day in verdicts else _UNJUDGED | {"date": str(day)}
    return shown | _UNSEALED if day in unsealed else shown


def _troubled(name: str, verdicts: Mapping[date, Verdict], unsealed: Mapping[date, str]) -> Iterator[dict[str, Any]]:
    """List what was not well: verdicts, and days that came to none; these may have an earlier verdict to lead to."""
    for day, verdict in verdicts.items():
        if verdict.severity is not Severity.PASS and day not in unsealed:
            yield _linked(verdict) | {"name": name, "failed": _failed(verdict)}
    for day, reason in unsealed.items():
        yield _cell(verdicts, unsealed, day) | {"name": name, "failed": f"It {reason}"}


def _linked(verdict: Verdict) -> dict[str, str]:
    return {
        "link": f"{verdict.subject}/{verdict.day}/{verdict.run_id}.html",
        "date": str(verdict.day),
        "tone": str(_tone(verdict)),
        "words": _words(verdict),
        "sign": _SIGNS[_tone(verdict)],
    }


def _is_refused(verdict: Verdict) -> bool:
    return not (verdict.publishable or verdict.accepted or detector_of(verdict.subject))


def _tone(verdict: Verdict) -> Severity:
    return Severity.WARNING if verdict.accepted else verdict.severity


def _words(verdict: Verdict) -> str:
    return f"published, accepted by {verdict.accepted.by}" if verdict.accepted else _WORDS[verdict.severity]


def _failed(verdict: Verdict) -> str:
    names = [check.name for check in verdict.failed if check.severity is not Severity.INFO]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _strip(verdict: Verdict, records: Records) -> list[dict[str, Any]]:
    """Describe the latest judged days up to this one, the earliest first."""
    earlier = [day for day in records.days(verdict.subject) if day < verdict.day][: _STRIP - 1]
    found = [records.latest(verdict.subject, day) for day in reversed(earlier)]
    shown = [one.verdict for one in found if one is not None] + [verdict]
    return [
        _linked(one)
        | {"link": f"../{one.day}/{one.run_id}.html", "now": one is verdict, "number": f"{one.day.day}"}
        for one in shown
    ]  # fmt: skip


def _sentence(verdict: Verdict) -> str:
    failed = [check for check in verdict.failed if check.severity is not Severity.INFO]
    every = f"{len(verdict.checks)} check{'s' * (len(verdict.checks) != 1)}"
    if not failed:
        return f"{verdict.outcome}." if verdict.checks else "There are no rules for it, so nothing was checked."
    names = ", ".join(check.name for check in failed[:3]) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
    unjudged = sum(not check.judged for check in verdict.checks)
    end = f" {unjudged} had nothing to compare with." if unjudged else ""
    end += "" if verdict.publishable or verdict.accepted else " The version published before, if any, still counts."
    end += f" {verdict.accepted.text}" if verdict.accepted else ""
    return f"{len(failed)} of {every} failed: {names}.{end}"


def _groups(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The rules by stage; drift has a table of its own."""
    of = {title: [_row(check) for check in checks if check.stage is stage] for stage, title in _STAGES.items()}
    return [{"title": title, "checks": own} for title, own in of.items() if own]


def _row(check: Check) -> dict[str, Any]:
    """Prepare a check for the templates: `tone` is the severity of a failure, `shade` and `standing` its result."""
    facts = check.model_dump(exclude={"meaning"})
    tone = str(check.severity)
    return facts | {
        "meaning": check.meaning.rstrip("."), "tone": tone, "shade": "pass" if check.passed else tone,
        "standing": "not judged" if not check.judged else "passed" if check.passed else "failed",
    }  # fmt: skip


_WIDTH, _HEIGHT, _BASE = 1000, 172, 152
_SPARK = (132, 28)


def tiles(profile: Profile, before: Sequence[Profile]) -> list[dict[str, str]]:
    """The few figures that one looks at first: label, value, note and tone each."""
    rows, known = profile.number("rows") or 0, [one.number("rows") or 0.0 for one in before]
    usual = f"usually {shown(median(known))}" if known else "nothing to compare with yet"
    hours, late = int(profile.number("hours") or 0), profile.number("late")
    refused = profile.number("quarantined")
    lost, last = profile.number("missing_offsets"), profile.figures.get("last_event")
    return [
        _tile("Events", shown(int(rows)), usual, "" if rows else "critical"),
        _tile("Hours with events", f"{hours} of 24", f"the last at {last:%H:%M:%S}" if isinstance(last, datetime)
              else "no event", "" if hours == 24 else "warning"),
        _tile("Duplicates dropped", _count(profile, "duplicates"), _percent(profile.number("duplicate_ratio"),
              "of landed events"), ""),
        _tile("Late", _count(profile, "late"), "not counted by the stream" if late else "none", ""),
        _tile("In quarantine", "unknown" if refused is None else shown(int(refused)),
              _percent(profile.number("quarantine_ratio"), "of all records"), ""),
        _tile("Offsets missing", _count(profile, "missing_offsets"), "never landed" if lost else "none lost",
              "critical" if lost else ""),
    ]  # fmt: skip


def by_hour(profile: Profile, before: Sequence[Profile]) -> dict[str, Any]:
    """Bars of the 24 hours, in a box of 1000 by 172, with a mark at what is usual."""
    counts = profile.by_hour
    usual = [median(one.by_hour[hour] for one in before) if before else None for hour in range(24)]
    top = max([*counts, *(value for value in usual if value is not None), 1])
    step, width = _WIDTH / 24, _WIDTH / 24 - 12
    bars = []
    for hour, (count, mark) in enumerate(zip(counts, usual, strict=True)):
        tall = round(count / top * (_BASE - 8), 1)
        bars.append(
            {
                "hour": f"{hour:02d}",
                "count": shown(count),
                "usual": "" if mark is None else shown(mark),
                "none": not count,
                "x": round(hour * step + 6, 1),
                "width": round(width, 1),
                "y": round(_BASE - max(tall, 2), 1),
                "height": max(tall, 2),
                "mark": None if mark is None else round(_BASE - mark / top * (_BASE - 8), 1),
            }
        )
    return {"bars": bars, "height": _HEIGHT, "base": _BASE, "known": len(before), "empty": not all(counts)}


def drift(profile: Profile, before: Sequence[Profile]) -> list[dict[str, Any]]:
    """Rows of the figures in which drift is looked for, with a small line of the weeks before."""
    usual = usual_figures(before)
    rows = []
    for check in drift_checks(profile, usual):
        name = check.about
        if check.name != f"usual {name}":
            continue
        of, today = usual[name], profile.number(name)
        past = [number for one in reversed(before) if (number := one.number(name)) is not None]
        rows.append(
            {
                "name": name,
                "tone": "pass" if check.passed else str(check.severity),
                "today": shown(today),
                "middle": shown(of.middle),
                "low": shown(of.low),
                "high": shown(of.high),
                "spark": _spark(past if today is None else [*past, today], of.low, of.high),
            }
        )
    return rows


def columns(profile: Profile, source: Source) -> list[dict[str, str]]:
    """One row for each declared column."""
    return [
        {
            "name": column,
            "kind": kind,
            "missing": _percent(profile.number(f"{column}.null_ratio"), "") or "nothing",
            "distinct": shown(profile.figures[f"{column}.distinct"]) if f"{column}.distinct" in profile.figures else "",
            "range": _range(profile, column),
        }
        for column, kind in source.columns.items()
        if f"{column}.nulls" in profile.figures
    ]


def _range(profile: Profile, column: str) -> str:
    def of(name: str) -> str:
        return shown(profile.figures.get(f"{column}.{name}"))

    if profile.number(f"{column}.mean") is not None:
        return f"{of('minimum')} to {of('maximum')}, mean {of('mean')}, median {of('median')}, 95 % below {of('p95')}"
    if profile.number(f"{column}.longest") is not None:
        return f"{of('longest')} bytes at most"
    share = profile.number(f"{column}.true_ratio")
    return "" if share is None else f"{share:.1%} true"


def _spark(values: Sequence[float], low: float, high: float) -> dict[str, Any]:
    """A line in a box of 132 by 28; the last value is the dot."""
    width, height = _SPARK
    bottom, top = min([low, *values]), max([high, *values])
    room = (top - bottom) or 1.0

    def place(value: float) -> float:
        return round(4 + (top - value) / room * (height - 8), 1)

    step = (width - 8) / max(len(values) - 1, 1)
    points = [(round(4 + number * step, 1), place(value)) for number, value in enumerate(values)] or [(4.0, 14.0)]
    return {
        "points": " ".join(f"{x},{y}" for x, y in points),
        "x": points[-1][0],
        "y": points[-1][1],
        "top": place(high),
        "room": max(round(place(low) - place(high), 1), 1),
    }


def _tile(label: str, value: str, note: str, tone: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "tone": tone}


def _count(profile: Profile, name: str) -> str:
    return shown(int(profile.number(name) or 0))


def _percent(share: float | None, of: str) -> str:
    return "" if share is None else f"{share:.2%} {of}".strip()
