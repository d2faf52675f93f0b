"""Our table of expectations beside Great Expectations itself, and what comes of rules that it runs."""

import json
import math
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.findings import finding as usual_finding
from tests.rig.samples.history import facts_of
from tests.rig.samples.visits import DAY, VISITS, expect, profile, write
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.quality.data_drift import Usual
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.judging import FindingGate, FoundOn, are_few, day_checks, finding_checks, quarantine_checks
from tocsin.quality.suites.expectations import KNOWN
from tocsin.quality.suites.suite import Suite
from tocsin.quality.suites.suite_catalog import read_suites
from tocsin.quality.verdict import Check, CheckStage, Severity
from tocsin.quality.verdict_files import Records

ROOT = Path(__file__).parents[3]
BETWEEN = "column_values_to_be_between"
START = datetime(2026, 11, 21, tzinfo=UTC)


def gx_suite(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = import_module("great_expectations.core.expectation_suite").ExpectationSuite
        return suite(**json.loads(path.read_text()))


@pytest.mark.parametrize("path", sorted((ROOT / "expectations").glob("*.json")), ids=lambda path: path.stem)
def test_a_shipped_suite_is_one_of_great_expectations_and_comes_back_as_it_was(path: Path) -> None:
    back, written = gx_suite(path).to_json_dict(), json.loads(path.read_text())
    assert back["name"] == written["name"]
    for entry, own in zip(back["expectations"], written["expectations"], strict=True):
        assert {key: entry[key] for key in own} == own


def test_every_known_expectation_and_argument_is_one_of_great_expectations() -> None:
    gx_suite(ROOT / "expectations/logins.day.json")  # loads it
    get_expectation_impl = import_module("great_expectations.expectations.registry").get_expectation_impl
    for name, known in KNOWN.items():
        fields = get_expectation_impl(name).__fields__
        assert set(known.arguments) <= set(fields), name
        assert all(not fields[key].required or key in known.needed for key in fields), name


def day_suite(project: Path, *entries: Any) -> Suite:
    """The suite for the day with these expectations."""
    write(project, "day", *entries)
    return read_suites(project, VISITS).day


def one(checks: list[Check]) -> Check:
    assert len(checks) == 1
    return checks[0]


def test_a_rule_for_the_day_holds_and_fails(tmp_path: Path) -> None:
    suite = day_suite(tmp_path, expect(BETWEEN, "warning", column="rows", min_value=2400))
    held, failed = one(day_checks(suite, profile(), {})), one(day_checks(suite, profile(rows=2399), {}))
    assert (held.passed, failed.passed) == (True, False)
    assert (failed.stage, failed.severity, failed.about) == (CheckStage.DAY, Severity.WARNING, "rows")
    assert (failed.observed, failed.limit) == ("2,399", "at least 2,400")


def test_what_is_usual_is_filled_in_or_waited_for(tmp_path: Path) -> None:
    suite = day_suite(tmp_path, expect(BETWEEN, column="rows", max_value={"$PARAMETER": "usual_rows * 10"}))
    waiting = one(day_checks(suite, profile(rows=10**6), {}))
    assert (waiting.passed, waiting.judged) == (True, False)
    assert waiting.limit == "at most usual_rows * 10, once four such days are known"
    usual = {"rows": Usual(240.0, 200.0, 280.0)}
    assert one(day_checks(suite, profile(rows=2400), usual)).passed
    broken = one(day_checks(suite, profile(rows=2401), usual))
    assert (broken.passed, broken.limit) == (False, "at most 2,400")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"$PARAMETER": "day_start"}, {"$PARAMETER": "day_end"}),
        ("2026-11-21", "2026-11-22T00:00:00"),
        ("2026-11-21T00:00:00Z", "2026-11-22T01:00:00+01:00"),
    ],
)
def test_times_of_the_day_are_compared_as_times(tmp_path: Path, start: Any, end: Any) -> None:
    suite = day_suite(tmp_path, expect(BETWEEN, column="last_event", min_value=start, max_value=end, strict_max=True))
    assert one(day_checks(suite, profile(), {})).passed
    late = one(day_checks(suite, profile(last_event=START + timedelta(days=1)), {}))
    assert (late.passed, late.observed) == (False, "2026-11-22 00:00:00 UTC")


def shipped(name: str) -> Suite:
    """The shipped suite for the day with this rule alone."""
    return replace(SHIPPED.day, rules=tuple(rule for rule in SHIPPED.day.rules if rule.name == name))


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("more_than_half_of_the_hours", {"hours": 13}, {"hours": 12}),
        ("user_id_filled", {"user_id__null_ratio": 0.05}, {"user_id__null_ratio": 0.06}),
        ("action_filled", {"action__null_ratio": 0.0}, {"action__null_ratio": 1.0}),
    ],
)
def test_shipped_rules_that_need_no_past_hold_a_first_day(rule: str, good: Any, bad: Any) -> None:
    held = one(day_checks(shipped(rule), profile(**bad), {}))
    assert (held.passed, held.judged, held.severity) == (False, True, Severity.CRITICAL)
    assert one(day_checks(shipped(rule), profile(**good), {})).passed


def test_the_hours_of_a_day_under_way_are_not_judged() -> None:
    waiting = one(day_checks(shipped("more_than_half_of_the_hours"), profile(hours=3), {}, over=False))
    assert (waiting.passed, waiting.judged) == (True, False)
    assert waiting.limit == "more than day_hours * 0.5, once the day is over"


def came(refused: int | None, used: int, imported: int = 0) -> DayFacts:
    facts = facts_of("v1", rows=used + imported)
    return facts.model_copy(update={"quarantined": refused, "imported": imported})


@pytest.mark.parametrize(
    ("day", "severity"),
    [
        (came(50, 950), None),
        (came(51, 949), Severity.WARNING),
        (came(999, 0), None),
        (came(999, 0, imported=9_000), Severity.WARNING),
        (came(1_000, 0, imported=1_000), Severity.WARNING),
        (came(323, 0, imported=1_307), Severity.WARNING),
        (came(823, 0, imported=807), Severity.CRITICAL),
        (came(500, 500), Severity.WARNING),
        (came(501, 499), Severity.CRITICAL),
        (came(1_000, 0), Severity.CRITICAL),
        (came(None, 5_000), None),
    ],
)
def test_a_day_of_which_much_went_to_quarantine_warns_and_most_stops_it(
    day: DayFacts, severity: Severity | None
) -> None:
    checks = quarantine_checks(Suite("visits", CheckStage.DAY), day)
    assert [one.severity for one in checks if not one.passed] == ([severity] if severity else [])


def test_a_rule_of_the_suite_takes_the_place_of_that(tmp_path: Path) -> None:
    suite = day_suite(tmp_path, expect(BETWEEN, column="quarantine_ratio", max_value=0.9))
    assert quarantine_checks(suite, came(800, 200)) == []
    assert one(day_checks(suite, profile(quarantine_ratio=0.9), {})).passed
    assert not one(day_checks(suite, profile(quarantine_ratio=0.95), {})).passed


def test_a_figure_without_a_value_opens_no_gate(tmp_path: Path) -> None:
    suite = day_suite(tmp_path, expect(BETWEEN, column="amount.mean", min_value=0))
    empty = one(day_checks(suite, profile(amount__mean=None), {}))
    assert (empty.passed, empty.observed) == (False, "nothing")
    expected = day_suite(tmp_path, expect("column_values_to_be_null", column="amount.mean"))
    assert one(day_checks(expected, profile(amount__mean=None), {})).passed
    assert not one(day_checks(expected, profile(amount__mean=1.5), {})).passed


def test_two_figures_are_compared(tmp_path: Path) -> None:
    pair = {"column_A": "amount.maximum", "column_B": "amount.minimum"}
    suite = day_suite(tmp_path, expect("column_pair_values_a_to_be_greater_than_b", **pair))
    assert one(day_checks(suite, profile(amount__maximum=2.0, amount__minimum=1.0), {})).passed
    same = one(day_checks(suite, profile(amount__maximum=1.0, amount__minimum=1.0), {}))
    assert (same.passed, same.observed, same.about) == (False, "1 and 1", "amount.maximum and amount.minimum")


def finding(number: int = 0, **fields: Any) -> Finding:
    return usual_finding(at=START).model_copy(update={"finding_id": f"f{number}"} | fields)


SHIPPED = read_suites(ROOT, read_source(ROOT / "sources/logins.toml"))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ({"score": math.nan}, "has_score"),
        ({"score": math.inf}, "finite_score"),
        ({"score": 50.0}, "above_its_limit"),
        ({"level": "loud"}, "known_level"),
        ({"window_start": START - timedelta(seconds=1)}, "window_of_the_day"),
        ({"window_start": START + timedelta(days=1)}, "window_of_the_day"),
        ({"finding_id": "f1"}, "one_identity"),
    ],
)
def test_the_shipped_rules_stop_bad_findings(broken: dict[str, Any], rule: str) -> None:
    findings = [finding(number) for number in range(1, 21)] + [finding(99, **broken)]
    failed = {
        check.name: check for check in finding_checks(SHIPPED.findings, findings, DAY, [20, 20]) if not check.passed
    }
    assert rule in failed
    assert failed.keys() <= {rule, "above_its_limit"}, "NaN is above nothing either"
    assert findings[-1].finding_id in failed[rule].samples
    assert failed[rule].stage is CheckStage.FINDING


def test_the_shipped_rules_let_good_findings_pass_also_when_there_are_none() -> None:
    for findings in ([], [finding(number) for number in range(30)]):
        for before in ([], [0] * 28, [20, 30]):
            checks = finding_checks(SHIPPED.findings, findings, DAY, before)
            assert [check.name for check in checks if not check.passed] == []
            assert [check.name for check in checks] == [rule.name for rule in SHIPPED.findings.rules]


@pytest.mark.parametrize("of", ["mean", "median", "min", "max"])
def test_a_day_without_findings_breaks_no_rule_about_their_scores(tmp_path: Path, of: str) -> None:
    write(tmp_path, "findings", expect(f"column_{of}_to_be_between", column="score", min_value=1, strict_min=None))
    suite = read_suites(tmp_path, VISITS).findings
    quiet, broken = (one(finding_checks(suite, each, DAY, [])) for each in ([], [finding(score=0.5)]))
    assert (quiet.passed, quiet.judged, quiet.observed) == (True, False, "nothing")
    assert (broken.passed, broken.judged, broken.observed) == (False, True, "0.5")


def test_a_flood_of_findings_is_stopped_by_the_days_before() -> None:
    findings = [finding(number) for number in range(161)]
    count = next(c for c in finding_checks(SHIPPED.findings, findings, DAY, [3, 20]) if c.name == "not_too_many")
    assert (count.passed, count.observed, count.limit) == (False, "161", "at most 160 rows")
    assert next(
        c for c in finding_checks(SHIPPED.findings, findings[:160], DAY, [3, 20]) if c.name == "not_too_many"
    ).passed


def test_limits_that_cross_when_they_are_filled_in_fail_alone(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"min_value": 1, "max_value": {"$PARAMETER": "most_findings * 2"}}
    unique = expect("column_values_to_be_unique", column="finding_id")
    write(tmp_path, "findings", expect("table_row_count_to_be_between", **limits), unique)
    count, other = finding_checks(read_suites(tmp_path, VISITS).findings, [finding()], DAY, [0])
    assert (count.passed, other.passed) == (False, True)
    assert "min_value (1) must be less than or equal to max_value (0)" in count.observed


def test_ten_samples_at_most(tmp_path: Path) -> None:
    write(tmp_path, "findings", expect("column_values_to_be_in_set", column="level", value_set=["urgent"]))
    suite = read_suites(tmp_path, VISITS).findings
    check = one(finding_checks(suite, [finding(number) for number in range(50)], DAY, []))
    assert (check.observed, len(check.samples)) == ("50 of 50 break it", 10)


def test_the_gate_of_findings_keeps_its_verdict_and_its_page(tmp_path: Path) -> None:
    write(tmp_path, "findings", expect("column_values_to_be_in_set", column="level", value_set=["email"]))
    gate = FindingGate(Settings(project=tmp_path, state=tmp_path / "state"), VISITS)
    good = gate.judge(FoundOn("bursts", DAY, "run-1", [finding()]))
    bad = gate.judge(FoundOn("bursts", DAY, "run-2", [finding(level="urgent")]))
    assert (good.publishable, bad.publishable) == (True, False)
    assert bad.report is not None
    assert "level_in_set" in (tmp_path / "state" / bad.report).read_text()
    record = Records(tmp_path / "state").latest("findings.bursts", DAY)
    assert record is not None
    assert record.verdict == bad


def test_a_share_is_compared_as_great_expectations_does() -> None:
    for judged in (20, 100, 999, 1_000):
        for broken in range(judged + 1):
            for hundredths in range(1, 101):
                mostly = hundredths / 100
                passed = are_few(broken, broken / judged, mostly)
                assert passed == (not broken or (judged - broken) / judged >= mostly), (judged, broken, mostly)
    assert are_few(7, 0.07, 0.93)
    assert are_few(0, None, 1.0)
