"""How alerts are compared with labels: the windows of one hour, ten minutes each, and what is known of them.

`ann 0 7` is a window of ann that begins at minute 0 and scores 7; `ann 5-15` is an incident of hers, and with `none`
behind it a false alarm.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.alerts.evaluation.scoring import Label, Labels, ScoredWindow, choose_limit, evaluate, ladder_of

BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, PERIOD = timedelta(minutes=1), timedelta(minutes=30)


def windows(text: str, length: int = 10) -> list[ScoredWindow]:
    found = []
    for words in map(str.split, filter(None, text.split(","))):
        start = BEGIN + int(words[1]) * MINUTE
        found.append(ScoredWindow(words[0], start, start + length * MINUTE, float(words[2])))
    return found


def labels(text: str) -> list[Label]:
    found = []
    for who, span, *none in map(str.split, filter(None, text.split(","))):
        start, end = (BEGIN + int(minute) * MINUTE for minute in span.split("-"))
        found.append(Label(who, start, end, is_real=not none))
    return found


@pytest.mark.parametrize(
    ("scores", "known", "alerts_right_found", "delay"),
    [
        pytest.param("ann 0 7", "ann 0-10", (1, 1, 1), 10, id="a window of the incident: known when it has ended"),
        pytest.param("ann 0 5", "ann 0-10", (0, 0, 0), None, id="a score at the limit is not above it"),
        pytest.param("bob 0 7", "ann 0-10", (1, 0, 0), None, id="somebody else"),
        pytest.param("ann 0 7", "ann 9-20", (1, 1, 1), 1, id="they overlap by a minute"),
        pytest.param("ann 0 7", "ann 10-20", (1, 0, 0), None, id="the window ends where the incident begins"),
        pytest.param("ann 10 7", "ann 0-10", (1, 0, 0), None, id="the window begins where the incident ends"),
        pytest.param("ann 0 7, ann 29 7", "ann 0-10", (1, 1, 1), 10, id="one period, one alert"),
        pytest.param("ann 0 7, ann 30 7", "ann 0-10", (2, 1, 1), 10, id="a period later another alert, a wrong one"),
        pytest.param("ann 0 7, ann 10 7", "ann 15-20", (1, 1, 1), 5, id="a later window of the alert finds it"),
        pytest.param("ann 20 7, ann 0 7", "ann 0-40", (1, 1, 1), 10, id="the order of the scores is of no account"),
        pytest.param("ann 0 7, ann 40 7", "ann 0-60", (2, 2, 1), 10, id="two right alerts, one incident, its firs"),
        pytest.param("ann 0 7", "ann 0-5, ann 6-9, bob 0-9", (1, 1, 2), 7, id="two incidents of one window"),
        pytest.param("ann 0 7", "ann 0-10, ann 0-10", (1, 1, 1), 10, id="an incident named twice is one"),
    ],
)  # fmt: skip
def test_alerts_are_right_where_they_overlap_an_incident(
    scores: str, known: str, alerts_right_found: tuple[int, int, int], delay: int | None
) -> None:
    alerts, right, found = alerts_right_found
    (one,) = evaluate(windows(scores), Labels(labels(known), is_complete=True), [5], PERIOD, 2)
    there = len(set(labels(known)))
    assert (one.alerts, one.right, one.wrong, one.found) == (alerts, right, alerts - right, found)
    assert one.delay_seconds == (None if delay is None else delay * 60)
    assert one.precision == (right / alerts if alerts else None)
    assert (one.recall, one.alerts_a_day) == (found / there, alerts / 2)


def test_an_event_without_a_window_lies_in_an_incident_from_its_start_on_and_before_its_end() -> None:
    (one,) = evaluate(
        windows("ann 0 7, bob 10 7, cid 5 7", length=0),
        Labels(labels("ann 0-10, bob 0-10, cid 0-10"), is_complete=True), [5], PERIOD, 1,
    )  # fmt: skip
    assert (one.right, one.wrong, one.delay_seconds) == (2, 1, 150)


def test_of_verdicts_alone_only_alerts_count_that_somebody_judged() -> None:
    known = Labels(labels("ann 0-10, bob 0-10 none, cid 0-10, cid 0-10 none"))
    (one,) = evaluate(windows("ann 0 7, bob 0 7, cid 0 7, dan 0 7"), known, [5], PERIOD, 1)
    assert (one.alerts, one.right, one.wrong, one.precision) == (4, 2, 1, 2 / 3)
    (none,) = evaluate(windows("dan 0 7"), Labels(), [5], PERIOD, 1)
    assert (none.precision, none.recall, none.delay_seconds) == (None, None, None)


def test_the_chosen_limit_is_the_lowest_that_leaves_few_enough_alerts() -> None:
    scores = windows("ann 0 1, ann 10 9, ann 40 4, bob 0 3, cid 0 2, dan 0 2")
    counts = [one.alerts for one in evaluate(scores, Labels(), [0, 1, 2, 3, 4, 9], PERIOD, 1)]
    assert counts == [5, 5, 3, 2, 1, 0]
    assert [choose_limit(scores, PERIOD, most) for most in (0, 1, 2.5, 3, 4, 5, 99)] == [9, 4, 3, 2, 2, 1, 1]
    assert choose_limit([], PERIOD, 1) is None


def test_a_ladder_has_the_declared_limits_and_leaves_more_and_more_scores() -> None:
    scores = [float(number) for number in range(100)]
    ladder = ladder_of(scores, [50.5])
    assert [sum(score > limit for score in scores) for limit in ladder] == [64, 49, 32, 16, 8, 4, 2, 1]
    assert ladder_of([3.0, 3.0], [1]) == [1]
    assert ladder_of([], [1, 2]) == [1, 2]
