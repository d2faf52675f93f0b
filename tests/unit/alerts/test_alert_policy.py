from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.alerts.scene import FACTS, MINUTE, NOON, SECOND, WINDOW, finding
from tocsin.alerts import alert_policy
from tocsin.alerts.alert_policy import LastReports, NotificationKind, SentBefore
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import Stage
from tocsin.declare.model.finding import Origin
from tocsin.declare.model.job_report import JobReport, JobState

END = NOON + WINDOW


def report(watermark: datetime | None, at: datetime, state: JobState = JobState.RUNNING) -> JobReport:
    return JobReport(job="any", at=at, state=state, watermark=watermark)


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


FRESH, LATE = END + FACTS.page_within, END + FACTS.page_within + SECOND


@pytest.mark.parametrize(
    ("now", "level", "told", "expected"),
    [
        (FRESH, 60, SentBefore(), NotificationKind.EMAIL),
        (FRESH, 120, SentBefore(), NotificationKind.URGENT),
        (FRESH, 60, SentBefore("email"), None),
        (FRESH, 120, SentBefore("email"), NotificationKind.URGENT),
        (FRESH, 120, SentBefore("urgent"), None),
        (FRESH, 60, SentBefore("urgent"), None),
        (FRESH, 60, SentBefore("", "urgent"), NotificationKind.EMAIL),
        (FRESH, 120, SentBefore("", "urgent"), NotificationKind.URGENT),
        (LATE, 60, SentBefore(), NotificationKind.DELAYED),
        (LATE, 120, SentBefore(), NotificationKind.DELAYED),
        (LATE, 120, SentBefore("", "email"), NotificationKind.DELAYED),
        (LATE, 120, SentBefore("email"), NotificationKind.DELAYED),
        (LATE, 60, SentBefore("", "email"), None),
        (LATE, 60, SentBefore("", "urgent"), None),
        (LATE, 120, SentBefore("urgent"), None),
    ],
)
def test_a_finding_that_is_more_than_what_was_told_notifies_at_once_and_an_old_one_only_in_the_delayed_summary(
    now: datetime, level: int, told: SentBefore, expected: NotificationKind | None
) -> None:
    """How old it is counts from the end of its window."""
    assert alert_policy.notification(finding(level), FACTS, told, now) == expected


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


@pytest.mark.parametrize(
    ("watermark", "complete_through", "indexed", "ready"),
    [
        (END, None, 19, False),
        (END, None, 20, True),
        (END - SECOND, None, 20, False),
        (END - MINUTE, END - SECOND, 20, False),
        (END - MINUTE, END, 19, False),
        (END - MINUTE, END, 20, True),
    ],
)
def test_an_email_leaves_when_the_job_has_passed_its_window_or_says_that_it_is_complete_and_the_indexer_is_as_far(
    watermark: datetime, complete_through: datetime | None, indexed: int, ready: bool
) -> None:
    said = END + 20 * SECOND
    job = report(watermark, at=said).model_copy(update={"complete_through": complete_through})
    indexer = report(END + indexed * SECOND, at=said + SECOND)
    closing = alert_policy.closing(END, UNTIL, LastReports(job, indexer), said + SECOND, None)
    assert (closing.ready, closing.incomplete) == (ready, "")


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
    assert alert_policy.patience(finding(), FACTS, NOON + 5 * SECOND) == END + 10 * SECOND + 2 * MINUTE
    late = END + 5 * MINUTE
    assert alert_policy.patience(finding(), FACTS, late) == late + 10 * SECOND + 2 * MINUTE


def test_a_window_that_claims_to_end_next_year_does_not_hold_its_mail_so_long() -> None:
    ahead = finding(at=NOON + timedelta(days=365))
    assert alert_policy.patience(ahead, FACTS, NOON) == NOON + WINDOW + 10 * SECOND + 2 * MINUTE
