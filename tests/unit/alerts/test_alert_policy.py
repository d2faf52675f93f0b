from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.alerts.scene import FACTS, MINUTE, NOON, SECOND, WINDOW, finding
from tocsin.alerts import alert_policy, finding_merging
from tocsin.alerts.alert_policy import LastReports, NotificationKind, SentBefore
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import Stage
from tocsin.declare.model.finding import Finding, Origin
from tocsin.declare.model.job_report import JobReport, JobState

END = NOON + WINDOW


def report(watermark: datetime | None, at: datetime, state: JobState = JobState.RUNNING) -> JobReport:
    return JobReport(job="any", at=at, state=state, watermark=watermark)


# --- merging ----------------------------------------------------------------------------------------------------------

of_one_version = st.builds(
    lambda score, at_least: finding(score, at_least=at_least), st.integers(51, 300), st.booleans()
)


@given(st.lists(of_one_version, min_size=1, max_size=4))
def test_within_a_version_the_highest_stays_in_whatever_order_they_come(records: list[Finding]) -> None:
    def fold(order: tuple[Finding, ...]) -> Finding:
        stays = order[0]
        for one in order[1:]:
            stays = finding_merging.choose_record(stays, one, "v1")
        return stays

    results = [fold(order) for order in permutations(records)]
    assert all(one == results[0] for one in results)
    assert results[0].score == max(one.score for one in records)


def test_an_exact_score_beats_an_equal_lower_bound() -> None:
    exact, bound = finding(120), finding(120, at_least=True)
    assert finding_merging.choose_record(bound, exact, "v1") is exact
    assert finding_merging.choose_record(exact, bound, "v1") is exact


def test_a_level_weighs_more_than_a_score() -> None:
    urgent, high = finding(101), finding(200, level="email", limit=50)
    assert finding_merging.choose_record(high, urgent, "v1") is urgent
    assert finding_merging.choose_record(urgent, high, "v1") is urgent


def test_a_backfill_is_final_for_its_version_even_when_lower() -> None:
    stream, backfill = finding(120), finding(90, origin=Origin.BACKFILL)
    assert finding_merging.choose_record(stream, backfill, "v1") is backfill
    assert finding_merging.choose_record(backfill, stream, "v1") is backfill
    again = finding(95, origin=Origin.BACKFILL)
    assert finding_merging.choose_record(backfill, again, "v1") is again


@pytest.mark.parametrize(
    ("stored", "new", "declared", "stays"),
    [
        ("v1", "v2", "v2", "v2"),
        ("v2", "v1", "v2", "v2"),
        ("v1", "v2", "v3", "v2"),
        ("v1", "v2", None, "v2"),
    ],
)
def test_across_versions_the_declared_one_stays_else_the_later(
    stored: str, new: str, declared: str | None, stays: str
) -> None:
    kept = finding_merging.choose_record(finding(300, version=stored), finding(60, version=new), declared)
    assert kept.version == stays


# --- dedup ------------------------------------------------------------------------------------------------------------

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("moment", "joins"),
    [
        (NOON, True),
        (NOON + HOUR - SECOND, True),
        (NOON + HOUR, False),
        (NOON - HOUR + SECOND, True),
        (NOON - HOUR, False),
    ],
)
def test_a_finding_joins_the_alert_whose_period_it_is_in(moment: datetime, joins: bool) -> None:
    assert alert_policy.alert_start(moment, [NOON], HOUR) == (NOON if joins else None)


def test_the_period_a_finding_is_in_wins_over_one_that_begins_later() -> None:
    starts = [NOON, NOON + HOUR]
    assert alert_policy.alert_start(NOON + 59 * MINUTE, starts, HOUR) == NOON
    assert alert_policy.alert_start(NOON - MINUTE, starts, HOUR) == NOON


moments = st.lists(st.integers(0, 10_000), min_size=1, max_size=30)


@given(moments)
def test_alerts_of_one_entity_never_overlap_and_take_every_finding(seconds: list[int]) -> None:
    period = timedelta(seconds=1000)
    starts: list[datetime] = []
    for second in seconds:
        moment = NOON + second * SECOND
        start = alert_policy.alert_start(moment, starts, period)
        if start is None:
            starts.append(moment)
        else:
            assert abs(moment - start) < period
    starts.sort()
    assert all(later - earlier >= period for earlier, later in pairwise(starts))


# --- notifying --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "told", "expected"),
    [
        (60, SentBefore(), NotificationKind.EMAIL),
        (120, SentBefore(), NotificationKind.URGENT),
        (60, SentBefore("email"), None),
        (120, SentBefore("email"), NotificationKind.URGENT),
        (120, SentBefore("urgent"), None),
        (60, SentBefore("urgent"), None),
        (60, SentBefore("", "urgent"), NotificationKind.EMAIL),
        (120, SentBefore("", "urgent"), NotificationKind.URGENT),
    ],
)
def test_a_fresh_finding_notifies_at_once_when_it_is_more_than_what_was_told(
    level: int, told: SentBefore, expected: NotificationKind | None
) -> None:
    assert alert_policy.notification(finding(level), FACTS, told, NOON + 12 * SECOND) == expected


@pytest.mark.parametrize(
    ("level", "told", "expected"),
    [
        (60, SentBefore(), NotificationKind.DELAYED),
        (120, SentBefore(), NotificationKind.DELAYED),
        (120, SentBefore("", "email"), NotificationKind.DELAYED),
        (120, SentBefore("email"), NotificationKind.DELAYED),
        (60, SentBefore("", "email"), None),
        (60, SentBefore("", "urgent"), None),
        (120, SentBefore("urgent"), None),
    ],
)
def test_an_old_finding_only_ever_goes_to_the_delayed_summary(
    level: int, told: SentBefore, expected: NotificationKind | None
) -> None:
    late = END + FACTS.page_within + SECOND
    assert alert_policy.notification(finding(level), FACTS, told, late) == expected


def test_page_within_is_measured_from_the_end_of_the_window() -> None:
    assert (
        alert_policy.notification(finding(120), FACTS, SentBefore(), END + FACTS.page_within) == NotificationKind.URGENT
    )
    assert (
        alert_policy.notification(finding(120), FACTS, SentBefore(), END + FACTS.page_within + SECOND)
        == NotificationKind.DELAYED
    )


@pytest.mark.parametrize("now", [NOON, NOON + timedelta(days=1)])
@pytest.mark.parametrize("origin", list(Origin))
def test_shadow_and_signals_notify_nobody(now: datetime, origin: Origin) -> None:
    silent = FACTS.model_copy(update={"live": False})
    assert alert_policy.notification(finding(120, origin=origin), silent, SentBefore(), now) is None
    assert alert_policy.notification(finding(120), FACTS, SentBefore(), now) is not None


@pytest.mark.parametrize(
    ("now", "told", "expected"),
    [
        (NOON, SentBefore(), NotificationKind.DELAYED),
        (END, SentBefore(), NotificationKind.DELAYED),
        (END + FACTS.page_within, SentBefore(at_once="email"), NotificationKind.DELAYED),
        (END + timedelta(hours=20), SentBefore(), NotificationKind.DELAYED),
        (END + timedelta(hours=20), SentBefore(at_once="urgent"), None),
        (END + timedelta(hours=20), SentBefore(delayed="urgent"), None),
        (END + alert_policy.BACKFILLS_ARE_NEWS, SentBefore(), NotificationKind.DELAYED),
        (END + alert_policy.BACKFILLS_ARE_NEWS + SECOND, SentBefore(), None),
    ],
)
def test_a_backfill_only_ever_goes_to_the_delayed_summary_and_only_while_it_is_news(
    now: datetime, told: SentBefore, expected: NotificationKind | None
) -> None:
    assert alert_policy.notification(finding(120, origin=Origin.BACKFILL), FACTS, told, now) == expected


def test_the_nightly_backfill_of_the_whole_day_before_is_news() -> None:
    midnight, nightly = datetime(2026, 11, 21, tzinfo=UTC), timedelta(days=1, hours=4.5)
    assert nightly + timedelta(hours=12) <= alert_policy.BACKFILLS_ARE_NEWS
    first = finding(120, at=midnight, origin=Origin.BACKFILL)
    assert alert_policy.notification(first, FACTS, SentBefore(), midnight + nightly) is NotificationKind.DELAYED


steps = st.lists(st.tuples(st.integers(51, 150), st.booleans()), max_size=20)


@given(steps)
def test_one_alert_is_told_at_most_twice_at_once_and_never_as_less(findings: list[tuple[int, bool]]) -> None:
    told, at_once = SentBefore(), []
    for score, fresh in findings:
        now = END if fresh else END + timedelta(days=1)
        kind = alert_policy.notification(finding(score), FACTS, told, now)
        if kind is not None:
            assert fresh == (kind is not NotificationKind.DELAYED)
            told = told.plus(kind, finding(score).level)
            at_once += [kind] if fresh else []
    assert at_once in (
        [],
        [NotificationKind.EMAIL],
        [NotificationKind.URGENT],
        [NotificationKind.EMAIL, NotificationKind.URGENT],
    )
    fresh_scores = [score for score, fresh in findings if fresh]
    assert (NotificationKind.URGENT in at_once) == any(score > 100 for score in fresh_scores)


def test_stage_and_notify_decide_whether_a_detector_is_live() -> None:
    spec = read_catalog(Path(__file__).parents[3]).detector("failed_logins")
    assert alert_policy.DetectorFacts.of(spec, 10 * SECOND).live
    for stage in set(Stage) - {Stage.LIVE}:
        assert not alert_policy.DetectorFacts.of(replace(spec, stage=stage), 10 * SECOND).live
    assert not alert_policy.DetectorFacts.of(replace(spec, notify=False), 10 * SECOND).live


# --- closing ----------------------------------------------------------------------------------------------------------

UNTIL = END + 130 * SECOND


def test_an_email_leaves_when_the_job_has_passed_its_window_and_the_indexer_is_as_far() -> None:
    passed = report(END, at=END + 20 * SECOND)
    behind = report(END + 19 * SECOND, at=END + 21 * SECOND)
    level = report(END + 20 * SECOND, at=END + 21 * SECOND)
    now = END + 21 * SECOND
    assert not alert_policy.closing(END, UNTIL, LastReports(passed, behind), now, None).ready
    closed = alert_policy.closing(END, UNTIL, LastReports(passed, level), now, None)
    assert closed.ready
    assert closed.incomplete == ""


def test_an_email_waits_while_the_watermark_is_before_the_end_of_its_window() -> None:
    not_yet = LastReports(report(END - SECOND, at=END + 60 * SECOND), report(END + 60 * SECOND, at=END + 60 * SECOND))
    assert not alert_policy.closing(END, UNTIL, not_yet, END + 60 * SECOND, None).ready


def test_an_email_leaves_too_when_the_job_says_between_two_boundaries_that_the_window_is_complete() -> None:
    said = END + 11 * SECOND
    open_still = report(END - MINUTE, at=said)
    complete = open_still.model_copy(update={"complete_through": END})
    not_yet = open_still.model_copy(update={"complete_through": END - SECOND})
    assert not alert_policy.closing(END, UNTIL, LastReports(not_yet, report(said, at=said)), said, None).ready
    assert not alert_policy.closing(END, UNTIL, LastReports(complete, report(said - SECOND, at=said)), said, None).ready
    assert alert_policy.closing(END, UNTIL, LastReports(complete, report(said, at=said)), said, None).ready


def test_later_reports_of_the_job_do_not_move_the_mark_that_the_indexer_must_reach() -> None:
    """Both report in turns: asking for an indexer beyond the newest report might wait for ever."""
    closed_at = alert_policy.closing(
        END, UNTIL, LastReports(report(END, at=END + 20 * SECOND), None), END + 20 * SECOND, None
    ).closed_at
    later = LastReports(report(END + 5 * SECOND, at=END + 25 * SECOND), report(END + 24 * SECOND, at=END + 24 * SECOND))
    assert alert_policy.closing(END, UNTIL, later, END + 25 * SECOND, closed_at).ready


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        (LastReports(None, None), "the detector's job has not reported"),
        (LastReports(report(END - MINUTE, END, JobState.DRAINING), None), "the detector's job was draining"),
        (LastReports(report(None, END, JobState.STARTING), None), "has no watermark yet"),
        (LastReports(report(END, END + SECOND), None), "the indexer has not reported"),
    ],
)
def test_patience_ends_and_the_mail_says_why_it_may_be_incomplete(jobs: LastReports, reason: str) -> None:
    assert not alert_policy.closing(END, UNTIL, jobs, UNTIL - SECOND, None).ready
    closing = alert_policy.closing(END, UNTIL, jobs, UNTIL, None)
    assert closing.ready
    assert reason in closing.incomplete


def test_patience_counts_from_the_end_of_the_window_and_its_lateness() -> None:
    two_minutes = timedelta(minutes=2)
    assert alert_policy.patience(finding(), FACTS, two_minutes, NOON + 5 * SECOND) == END + 10 * SECOND + two_minutes
    late = END + 5 * MINUTE
    assert alert_policy.patience(finding(), FACTS, two_minutes, late) == late + 10 * SECOND + two_minutes


def test_a_window_that_claims_to_end_next_year_does_not_hold_its_mail_so_long() -> None:
    ahead = finding(at=NOON + timedelta(days=365))
    assert alert_policy.patience(ahead, FACTS, 2 * MINUTE, NOON) == NOON + WINDOW + 10 * SECOND + 2 * MINUTE


# --- what no table can hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"finding_id": "x" * 65}, "finding_id"),
        ({"finding_id": ""}, "finding_id"),
        ({"entity": {}}, "entity"),
        ({"window_end": None}, "go together"),
        ({"window_end": NOON}, "not after"),
        ({"window_end": datetime(9999, 12, 31, tzinfo=NOON.tzinfo)}, "far ahead"),
        ({"window_start": datetime(1969, 12, 31, tzinfo=NOON.tzinfo)}, "before 1970"),
        ({"window_start": NOON.replace(tzinfo=None)}, "time zone"),
    ],
)
def test_absurd_findings_are_named(changes: dict[str, object], fault: str) -> None:
    assert finding_merging.faults_of(finding()) == []
    changed = finding().model_copy(update=changes)
    assert any(fault in one for one in finding_merging.faults_of(changed))
