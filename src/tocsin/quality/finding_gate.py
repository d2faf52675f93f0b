"""The gate before findings of a backfill are published: the rules of `expectations/<source>.findings.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from tocsin.declare.model.finding import Finding
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.quality.judging import finding_checks
from tocsin.quality.report_page import day_page
from tocsin.quality.suites.suite_catalog import read_suites
from tocsin.quality.verdict import Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord, subject_of


@dataclass(frozen=True)
class FoundOn:
    """The findings of one detector that are about to be published for one UTC day, on which their windows begin.

    `run_id` is unique for detector and day; `before` has the number published on each known day of the 28 before.
    Findings are judged in memory: some thousands at most.
    """

    detector: str
    day: date
    run_id: str
    findings: Sequence[Finding]
    before: Sequence[int] = ()


class FindingGate:
    """Judges findings of detectors of one source.

    Making it raises ConfigError if a suite of the source has faults. A retry does not help.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self._source = source
        self._suite = read_suites(settings.project, source).findings
        self._records = Records(settings.state)

    def judge(self, found: FoundOn) -> Verdict:
        """Judge `found`; the verdict is kept below `<state>/quality/findings.<detector>/<day>/`.

        OSError if the report cannot be written; a retry helps once there is room.
        """
        subject = subject_of(found.detector)
        verdict = Verdict(
            subject=subject,
            day=found.day,
            run_id=found.run_id,
            judged_at=datetime.now(UTC),
            checks=tuple(finding_checks(self._suite, found.findings, found.day, found.before)),
            report=self._records.place(subject, found.day, found.run_id),
        )
        record = VerdictRecord(verdict=verdict)
        self._records.write(record, day_page(record, self._records, [], self._source))
        return verdict
