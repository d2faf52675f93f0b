"""The contract of a gate: what was checked, what came of it, and whether that day may be published.

Standard library and pydantic only, so that whoever has to act on a verdict can read one.
"""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field

MAX_SAMPLES = 10
_NAMED = 3


class Severity(StrEnum):
    """The severity of a check that fails; of a whole verdict, the worst of its failed checks."""

    PASS = "pass"
    """Of a verdict only: nothing failed that somebody should know of."""
    INFO = "info"
    """Shown on the page, told to nobody."""
    WARNING = "warning"
    """Goes on, and tells."""
    CRITICAL = "critical"
    """Stops: nothing is published."""

    @property
    def rank(self) -> int:
        """Orders severities; the greatest is the worst."""
        return list(Severity).index(self)


class CheckStage(StrEnum):
    """The stage at which a check runs."""

    ROW = "row"
    """A rule for single events, counted over the day."""
    DAY = "day"
    """A rule for the profile of the day."""
    DRIFT = "drift"
    """The profile beside those of the same weekday before."""
    FINDING = "finding"
    """A rule for the findings of one detector, before they are published."""


class Check(BaseModel, frozen=True, extra="forbid"):
    """One rule, and what came of it.

    Attributes:
        passed: whether the rule holds; true where it could not be judged.
        judged: false where there was nothing to compare with.
        samples: at most 10 identities of rows that break the rule (`raw.logins/0/42`), or entities of findings.
    """

    name: str
    stage: CheckStage
    about: str = ""
    severity: Severity
    passed: bool
    judged: bool = True
    observed: str
    limit: str
    meaning: str = ""
    samples: tuple[str, ...] = Field(default=(), max_length=MAX_SAMPLES)


class Acceptance(BaseModel, frozen=True, extra="forbid"):
    """Who publishes a day that the gate refused, when (UTC), and why."""

    by: str
    at: datetime
    reason: str

    @property
    def text(self) -> str:
        """Say the same in one sentence, for people."""
        return f"Accepted by {self.by} at {self.at:%Y-%m-%d %H:%M} UTC: {self.reason.rstrip('.')}."


class Verdict(BaseModel, frozen=True, extra="forbid"):
    """The gate's decision about one day of a source, or about the findings of one detector and day.

    Attributes:
        report: the page for people, relative to the state folder; None when none was written.
        accepted: who publishes the day though the gate refused it; None when nobody does.
    """

    subject: str
    day: date
    run_id: str
    judged_at: datetime
    checks: tuple[Check, ...]
    report: Path | None = None
    accepted: Acceptance | None = None

    @property
    def severity(self) -> Severity:
        """The worst of the failed checks; `pass` when none failed, or only ones of severity info."""
        worst = max((check.severity for check in self.failed), key=lambda severity: severity.rank, default=None)
        return worst if worst in (Severity.WARNING, Severity.CRITICAL) else Severity.PASS

    @property
    def publishable(self) -> bool:
        """Return whether the day may be published: no critical check failed."""
        return self.severity is not Severity.CRITICAL

    @property
    def failed(self) -> tuple[Check, ...]:
        """The failed checks, the worst first."""
        broken = [check for check in self.checks if not check.passed]
        return tuple(sorted(broken, key=lambda check: -check.severity.rank))

    @property
    def outcome(self) -> str:
        """Summarise the checks when none has failed, as in `12 checks passed, 2 had nothing to compare with`."""
        judged = sum(check.judged for check in self.checks)
        rest = len(self.checks) - judged
        passed = f"{judged} check{'s' * (judged != 1)} passed"
        return f"{passed}, {rest} had nothing to compare with" if rest else passed

    @property
    def summary(self) -> DaySummary:
        """The verdict in short."""
        failed = tuple(check.name for check in self.failed if check.severity is not Severity.INFO)
        own = {name: getattr(self, name) for name in ("subject", "day", "run_id", "judged_at", "severity", "report")}
        return DaySummary(**own, checks=len(self.checks), failed=failed)

    @property
    def text(self) -> str:
        """Summarise the verdict in a paragraph for a mail or a log: result, failures, and the report."""
        counts = f"{len(self.checks)} check{'s' * (len(self.checks) != 1)}"
        failed = [check for check in self.failed if check.severity is not Severity.INFO]
        if not failed:
            text = f"{self.subject} on {self.day} passed: {self.outcome}."
        else:
            of = {Severity.WARNING: "has warnings", Severity.CRITICAL: "is not published"}[self.severity]
            of = "was refused" if self.accepted else of
            text = f"{self.subject} on {self.day} {of}: {len(failed)} of {counts} failed. "
            text += " ".join(f"{_sentence(check)}" for check in failed[:_NAMED])
            text += f" And {len(failed) - _NAMED} more." if len(failed) > _NAMED else ""
            text += f" {self.accepted.text}" if self.accepted else ""
        return text if self.report is None else f"{text} Report: {self.report}"


class DaySummary(BaseModel, frozen=True):
    """A verdict in short.

    Attributes:
        severity: pass, warning or critical, which is not published.
        failed: names of those that failed, the worst first; without those of severity info.
    """

    subject: str
    day: date
    run_id: str
    judged_at: datetime
    severity: Severity
    checks: int
    failed: tuple[str, ...]
    report: Path | None


def judge_or_accept(source: str, day: date) -> tuple[str, str]:
    """Name the command that judges a refused day again, and the one that publishes it as it is."""
    seal = f"tocsin history seal --source {source} --day {day}"
    return seal, f"tocsin history publish {source} --day {day} --by NAME --reason TEXT"


def _sentence(check: Check) -> str:
    observed = (
        f"{check.about} is {check.observed}" if check.about and check.stage is not CheckStage.ROW else check.observed
    )
    what = f"{check.severity.capitalize()}: {check.name}: {observed}, allowed is {check.limit}."
    return f"{what} {check.meaning.rstrip('.')}." if check.meaning else what
