"""Drift beside the same weekday, verdicts, parameters, and the records of days."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median

import pytest

from tests.rig.samples.visits import DAY, profile
from tocsin.quality.data_drift import WEEKS, band, drift_checks, usual_figures, weekdays_before
from tocsin.quality.day_profile import Profile
from tocsin.quality.suites.suite import evaluate, names_in
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)


def before(*rows: int, **figures: float) -> list[Profile]:
    days = weekdays_before(DAY)
    return [profile(day, count, **figures) for day, count in zip(days, rows, strict=False)]


def failed(today: Profile, past: list[Profile]) -> dict[str, Severity]:
    return {check.name: check.severity for check in drift_checks(today, usual_figures(past)) if not check.passed}


def test_the_same_weekday_of_eight_weeks_is_looked_at() -> None:
    days = weekdays_before(DAY)
    assert (len(days), days[0], days[-1]) == (WEEKS, date(2026, 11, 14), date(2026, 9, 26))
    assert {day.weekday() for day in days} == {DAY.weekday()}


def test_with_three_known_days_nothing_is_usual() -> None:
    assert drift_checks(profile(rows=1), usual_figures(before(2400, 2400, 2400))) == []
    assert drift_checks(profile(), usual_figures(before(2400, 2400, 2400, 2400)))


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (2400, {}),
        (2640, {}),
        (2641, {"usual rows": Severity.WARNING}),
        (2159, {"usual rows": Severity.WARNING}),
        (1200, {"usual rows": Severity.WARNING}),
        (1199, {"half of the usual rows": Severity.CRITICAL, "usual rows": Severity.WARNING}),
        (0, {"half of the usual rows": Severity.CRITICAL, "usual rows": Severity.WARNING}),
        (24000, {"usual rows": Severity.WARNING}),
    ],
)
def test_volume_warns_outside_a_tenth_and_stops_below_half(rows: int, what: dict[str, Severity]) -> None:
    assert failed(profile(rows=rows), before(*[2400] * 8)) == what


def test_a_suite_may_say_that_few_rows_are_no_reason_to_stop() -> None:
    usual = usual_figures(before(*[2400] * 8))
    checks = drift_checks(profile(rows=0), usual, half=Severity.WARNING)
    assert {check.severity for check in checks if not check.passed} == {Severity.WARNING}


def test_a_source_that_varies_has_a_wider_band() -> None:
    # median 2400, absolute deviations 0 0 200 200 400 400 600 600: their median is 300
    counts = (1800, 2000, 2200, 2400, 2400, 2600, 2800, 3000)
    usual = band("rows", counts)
    assert (usual.middle, usual.low, usual.high) == pytest.approx((2400, 2400 - 3.5 * 1.4826 * 300, 2400 + 1556.73))
    assert failed(profile(rows=3900), before(*counts)) == {}
    assert band("celsius.median", (-8, -4, 1, 2, 3, 6, 9, 12)).low == pytest.approx(2.5 - 3.5 * 1.4826 * 5)


def test_one_bad_week_does_not_move_what_is_usual() -> None:
    assert band("rows", [2400] * 7 + [50]).middle == 2400
    assert failed(profile(rows=2400), before(*[2400] * 6, 50, 0)) == {}


def test_a_ratio_may_move_by_two_in_a_hundred() -> None:
    past = before(*[2400] * 8, page__null_ratio=0.25)
    assert failed(profile(page__null_ratio=0.269), past) == {}
    assert failed(profile(page__null_ratio=0.271), past) == {"usual page.null_ratio": Severity.WARNING}
    assert band("x_ratio", [0.0] * 8).low == 0.0
    assert band("x_ratio", [1.0] * 8).high == 1.0


def test_identifiers_and_random_columns_and_small_counts_do_not_warn() -> None:
    dice, warned = Random(7), set[str]()

    def day_of(day: date) -> Profile:
        rows = dice.randint(85, 115)
        ports = [dice.randint(1024, 65_535) for _ in range(rows)]
        figures = {"port.distinct": float(len(set(ports))), "port.median": float(median(ports))}
        users = len({dice.randrange(12) for _ in range(20)})
        return profile(day, rows, **{"session.distinct": float(rows), "user.distinct": float(users)}, **figures)

    for number in range(28):
        day = DAY + timedelta(days=number)
        warned |= failed(day_of(day), [day_of(one) for one in weekdays_before(day)]).keys()
    assert warned == set()


def test_a_sender_that_is_gone_is_still_seen_in_its_values() -> None:
    past = before(*[2400] * 8, host__distinct=40.0, size__median=500.0, size__distinct=300.0)
    assert failed(profile(host__distinct=20, size__median=500, size__distinct=300), past).keys() == {
        "usual host.distinct"
    }
    assert failed(profile(host__distinct=40, size__median=900, size__distinct=300), past).keys() == {
        "usual size.median"
    }


def test_a_figure_that_has_vanished_is_drift() -> None:
    assert failed(profile(page__null_ratio=None), before(*[2400] * 8)) == {"usual page.null_ratio": Severity.WARNING}


def test_a_day_that_was_imported_alone_has_no_share_in_quarantine_and_that_is_no_drift() -> None:
    known = before(*[2400] * 8, quarantine_ratio=0.01)
    assert failed(profile(quarantine_ratio=None), known) == {}
    assert failed(profile(quarantine_ratio=0.04), known) == {"usual quarantine_ratio": Severity.WARNING}


def check(severity: Severity, *, passed: bool = False, name: str = "r") -> Check:
    return Check(
        name=name, stage=CheckStage.DAY, about="rows", severity=severity, passed=passed, observed="4", limit="at most 3"
    )


def verdict(*checks: Check, day: date = DAY, run_id: str = "v1", judged_at: datetime = NOW) -> Verdict:
    return Verdict(subject="visits", day=day, run_id=run_id, judged_at=judged_at, checks=checks)


@pytest.mark.parametrize(
    ("failing", "severity"),
    [
        ((), Severity.PASS),
        ((Severity.INFO,), Severity.PASS),
        ((Severity.INFO, Severity.WARNING), Severity.WARNING),
        ((Severity.WARNING, Severity.CRITICAL, Severity.INFO), Severity.CRITICAL),
    ],
)
def test_a_verdict_is_as_bad_as_its_worst_failed_check(failing: tuple[Severity, ...], severity: Severity) -> None:
    judged = verdict(
        check(Severity.CRITICAL, passed=True), *(check(one, name=f"r{n}") for n, one in enumerate(failing))
    )
    assert judged.severity is severity
    assert judged.publishable is (severity is not Severity.CRITICAL)
    assert [one.severity.rank for one in judged.failed] == sorted((one.rank for one in failing), reverse=True)


def test_the_text_of_a_verdict_is_one_paragraph() -> None:
    judged = verdict(*(check(Severity.WARNING, name=f"r{number}") for number in range(5)))
    assert judged.text.startswith(
        "visits on 2026-11-21 has warnings: 5 of 5 checks failed. Warning: r0: rows is 4, allowed"
    )
    assert judged.text.endswith("And 2 more.")
    assert verdict(check(Severity.INFO)).text == "visits on 2026-11-21 passed: 1 check passed."
    assert "is not published" in verdict(check(Severity.CRITICAL)).text


def test_arithmetic_of_parameters() -> None:
    assert evaluate("-(usual_rows - 5) * 2 / usual_e", {"usual_rows": 10.0, "usual_e": 4}) == -2.5
    assert names_in("usual_rows*2+day_x") == {"usual_rows", "day_x"}
    for text in ("__import__('os')", "a.b", "a if b else c", "a, b", "'x'", "True", "a ** 2", "f(a)", "", "a +"):
        with pytest.raises(ValueError, match="is not arithmetic"):
            names_in(text)


def test_the_last_word_about_a_day_counts(tmp_path: Path) -> None:
    records = Records(tmp_path)
    first = VerdictRecord(verdict=verdict(check(Severity.CRITICAL)), profile=profile(rows=1))
    second = VerdictRecord(verdict=verdict(run_id="v2", judged_at=NOW + timedelta(hours=1)), profile=profile(rows=2))
    for record in (second, first):
        records.write(record, "<p>page</p>")
    assert records.latest("visits", DAY) == second
    assert (tmp_path / records.place("visits", DAY, "v2")).read_text() == "<p>page</p>"
    assert (records.subjects(), records.days("visits")) == (["visits"], [DAY])


def test_a_day_that_was_not_published_is_no_measure_for_others(tmp_path: Path) -> None:
    records = Records(tmp_path)
    other = DAY - timedelta(weeks=1)
    records.write(VerdictRecord(verdict=verdict(check(Severity.CRITICAL)), profile=profile()), "")
    records.write(VerdictRecord(verdict=verdict(check(Severity.WARNING), day=other), profile=profile(other)), "")
    assert [one.day for one in records.profiles("visits", [DAY, other, date(2020, 1, 1)])] == [other]


def test_a_change_that_stays_becomes_what_is_usual(tmp_path: Path) -> None:
    records, days = Records(tmp_path), [DAY + timedelta(weeks=week) for week in range(-8, 8)]
    stopped = []
    for day in days:
        today = profile(day, rows=2400 if day < DAY else 1000)
        checks = drift_checks(today, usual_figures(records.profiles("visits", weekdays_before(day))))
        judged = verdict(*checks, day=day)
        stopped += [] if judged.publishable else [day]
        records.write(VerdictRecord(verdict=judged, profile=today), "")
    assert stopped == days[8:12], "four weeks"


def test_a_record_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write(VerdictRecord(verdict=verdict(), profile=profile()), "")
    (tmp_path / "quality/visits/2026-11-21/v9.json").write_text('{"verdict": {}}')
    assert records.latest("visits", DAY) == VerdictRecord(verdict=verdict(), profile=profile())


def test_a_profile_is_rows_of_a_table(tmp_path: Path) -> None:
    rows = {row.name: row for row in profile(page__null_ratio=0.5).rows()}
    assert (rows["page.null_ratio"].column, rows["page.null_ratio"].metric, rows["rows"].column) == (
        "page",
        "null_ratio",
        None,
    )
    back = Profile.model_validate_json(profile().model_dump_json())
    assert back == profile(), "times and whole numbers come back as they were"
    assert isinstance(back.figures["rows"], int)
