from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tocsin.cases.case_report import CaseOutcome, DetectorOutcome, TestReport
from tocsin.cases.spark.case_lab import CaseLab


def test_cases_of_which_a_way_broke_off_have_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [CaseOutcome(name="a burst", file="failed_logins.py", line=1)]
    fault = "failed_logins.py: one-batch: no worker connects"
    outcome = DetectorOutcome(detector="failed_logins", faults=[fault], cases=cases)
    report = TestReport(detectors=[outcome], seconds=1.0)
    monkeypatch.setattr(CaseLab, "run", lambda *_, **__: report)
    monkeypatch.setenv("TOCSIN_PROJECT", str(Path(__file__).parents[4]))
    done = invoke(["test", "failed_logins"])
    assert done.exit_code == 1
    assert "failed_logins: not decided, since a way broke off" in done.output
    assert "1 case of 1 detector, 1 detector not decided, in 1.0 s" in done.output
    assert "passed" not in done.output
