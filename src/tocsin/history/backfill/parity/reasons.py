"""Why stream and batch differ: the first reason that holds, from what is known of both. Pure.

A reason is claimed on evidence about this very window. `late` and `quarantined` are claimed only where leaving out
those events gives what the stream said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tocsin.declare.model.sizes import in_full
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, ReportedFinding, Side, agree
from tocsin.platform.code_versions import Version


@dataclass(frozen=True)
class Lack:
    """Events that one side did not have; `what` happened is one sentence without a dot.

    `since` and `until` are event times of the windows that may lack some, UTC; None leaves a side open.
    """

    since: datetime | None
    until: datetime | None
    what: str

    def touches(self, start: datetime, end: datetime) -> bool:
        """Return whether the window from `start` to `end` may lack events; a single event has both at its time."""
        begins_in_time = self.until is None or start < self.until
        return begins_in_time and (self.since is None or end > self.since or start >= self.since)


@dataclass(frozen=True)
class HeldModel:
    """A model: its day and hash as findings name it, the windows that it judges, and when it was trained; UTC."""

    text: str
    since: datetime
    until: datetime | None
    made_at: datetime


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """All that is known of both sides besides their findings.

    Attributes:
        version: of the detector, that made the backfill.
        ran: the versions that ran as a stream and are kept, in the order in which they first ran.
        watermark: windows that end by then are closed, and all that was found in them is stored; None when nobody says.
    """

    version: str
    ran: Sequence[Version] = ()
    windowed: bool = True
    watermark: datetime | None = None
    lacks: Sequence[Lack] = ()
    models: Sequence[HeldModel] = ()


@dataclass(frozen=True)
class Recomputation:
    """What a detector finds when some events of the day are left out, by finding_id; what is not there is no finding.

    If the stream said the same, that proves `reason`; `why` is one sentence without a dot.
    """

    reason: DifferenceReason
    why: str
    found: Mapping[str, ReportedFinding] = field(default_factory=dict)


def explained(differences: Sequence[Difference], circumstances: Circumstances) -> list[Difference]:
    """The differences with the reasons that need no recomputing."""
    return [_explained(difference, circumstances) for difference in differences]


def unexplained(differences: Sequence[Difference]) -> list[Difference]:
    """Return those that have no reason yet."""
    return [one for one in differences if one.reason is DifferenceReason.UNEXPLAINED]


def proved(
    differences: Sequence[Difference], whole: Mapping[str, ReportedFinding], trials: Sequence[Recomputation]
) -> list[Difference]:
    """Return those of `differences` that have no reason with the one that a trial proves.

    `whole` is what the detector finds now when nothing is left out. Where that is not what the backfill published, a
    trial proves nothing. `trials` come in the order in which they are believed.
    """
    return [
        difference if difference.reason is not DifferenceReason.UNEXPLAINED else _proved(difference, whole, trials)
        for difference in differences
    ]


def _explained(difference: Difference, circumstances: Circumstances) -> Difference:
    if (why := _another_version(difference, circumstances)) is not None:
        return difference.because(DifferenceReason.VERSION, why)
    if circumstances.models and (why := _another_model(difference, circumstances.models)) is not None:
        return difference.because(DifferenceReason.MODEL, why)
    if circumstances.windowed and circumstances.watermark is not None and circumstances.watermark < difference.end:
        mark = f"{circumstances.watermark:%Y-%m-%d %H:%M:%S} UTC"
        return difference.because(DifferenceReason.OPEN, f"the stream's findings are complete up to {mark} so far")
    for lack in circumstances.lacks:
        if lack.touches(difference.start, difference.end):
            return difference.because(DifferenceReason.MISSING, lack.what)
    return difference


def _another_model(difference: Difference, models: Sequence[HeldModel]) -> str | None:
    """Say which models judged the two sides; None if it was the same one, as far as is known."""
    start = difference.start
    held = next((it for it in models if it.since <= start and (it.until is None or start < it.until)), None)
    batch = difference.batch.model if difference.batch is not None else held.text if held is not None else "none"
    if difference.stream is not None and difference.stream.model not in ("", batch):
        return f"the stream's finding is by model {difference.stream.model}, the backfill's by {batch}"
    if held is not None and held.made_at >= difference.end:
        return f"model {held.text} was trained when the window had closed, so the stream had another, or none"
    return None


def _another_version(difference: Difference, circumstances: Circumstances) -> str | None:
    """Name the version that computed the stream's side; None if it was that of the backfill, as far as is known."""
    batch = f"the backfill used version {circumstances.version}"
    if difference.stream is not None:
        other = difference.stream.version
        return None if other == circumstances.version else f"the stream's finding is by version {other}, {batch}"
    if not circumstances.ran:
        return None
    own = next((version for version in circumstances.ran if version.version == circumstances.version), None)
    earlier = [
        version
        for version in circumstances.ran
        if version.first_at < difference.end and version.version != circumstances.version
    ]
    if own is None:
        return f"{batch}, which never ran on the stream or is forgotten; {circumstances.ran[-1].version} ran last"
    if own.first_at >= difference.end and earlier:
        return f"{batch}, which first ran at {own.first_at:%Y-%m-%d %H:%M:%S} UTC; before it {earlier[-1].version} ran"
    later = [version for version in earlier if own.last_at < version.first_at <= difference.start]
    return f"{batch}; {later[-1].version} had replaced it on the stream" if later else None


def _proved(
    difference: Difference, whole: Mapping[str, ReportedFinding], trials: Sequence[Recomputation]
) -> Difference:
    now = whole.get(difference.finding_id)
    if not _equal(now, difference.batch):
        what = "unlike the published backfill; run the day again"
        return difference.because(
            DifferenceReason.UNEXPLAINED, f"the detector finds {_score_of(now)} in history now, {what}"
        )
    for trial in trials:
        if agree(difference.stream, trial.found.get(difference.finding_id)):
            return difference.because(trial.reason, trial.why)
    return difference.because(DifferenceReason.UNEXPLAINED, _summary(difference, trials))


def _equal(now: ReportedFinding | None, published: ReportedFinding | None) -> bool:
    return agree(now, published) and (now is None or not now.at_least)


def _summary(difference: Difference, trials: Sequence[Recomputation]) -> str:
    if not trials:
        return "no event in these windows was late, quarantined or imported"
    found = {_score_of(trial.found.get(difference.finding_id)) for trial in trials}
    streamed = "nothing" if difference.side is Side.BATCH else _score_of(difference.stream)
    left_out = f"without late, quarantined or imported events the detector finds {' or '.join(sorted(found))}"
    return f"{left_out}; the stream found {streamed}"


def _score_of(finding: ReportedFinding | None) -> str:
    return "nothing" if finding is None else f"{finding.level} {in_full(finding.score)}"
