"""The pages for people: one for each judged day, and the grid of all. Self-contained HTML, which loads nothing.

Everything that came from data passes `printable` and Jinja's escaping on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tocsin.declare.model.sizes import printable
from tocsin.declare.model.source import Source
from tocsin.quality.day_profile import Profile
from tocsin.quality.profile_figures import by_hour, columns, drift, tiles
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
