from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.history import DAY, version
from tests.rig.samples.sealed_days import LOGINS
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_retention import tidy_after_sealing
from tocsin.history.sealing import SealingOutcome, seal
from tocsin.history.spark.seal import SealedDay
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord


def sealed(severity: Severity) -> SealedDay:
    passed = severity is Severity.PASS
    check = Check(
        name="a",
        stage=CheckStage.DAY,
        severity=Severity.INFO if passed else severity,
        passed=passed,
        observed="1",
        limit="0",
    )
    verdict = Verdict(subject="logins", day=DAY, run_id="v1", judged_at=datetime.now(UTC), checks=(check,))
    return SealedDay(DAY, version("v1"), verdict)


@pytest.mark.parametrize(
    ("severities", "failed", "code"),
    [
        ([], {}, 0),
        (["pass"], {}, 0),
        (["pass", "warning"], {}, 10),
        (["critical", "warning"], {}, 20),
        (["critical"], {"failed": {DAY: "broken"}}, 1),
        (["pass"], {"failed": {DAY: "full"}, "disk": True}, 4),
        (["pass", "critical"], {"unread": "Kafka is away"}, 1),
    ],
)
def test_the_exit_code_says_the_worst_of_all_days(severities: list[str], failed: dict[str, Any], code: int) -> None:
    outcome = SealingOutcome(sealed=[sealed(Severity(one)) for one in severities], **failed)
    assert outcome.code == code


def test_a_night_without_a_day_to_seal_tidies_up(tmp_path: Path) -> None:
    settings, day = Settings(project=tmp_path, state=tmp_path / "state"), date(2001, 1, 1)
    records = Records(settings.state)
    verdict = Verdict(subject="logins", day=day, run_id="v1", judged_at=datetime.now(UTC), checks=())
    records.write(VerdictRecord(verdict=verdict), "page")
    seal(settings, LOGINS, reads=False)
    tidy_after_sealing(settings, LOGINS)
    assert records.subjects() == []
