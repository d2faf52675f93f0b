"""The messages of one detector to one recipient: each line is an arrival, and what leaves then."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.unit.alerts.scene import NOON
from tocsin.alerts.notify import grouping
from tocsin.alerts.notify.grouping import GroupState


def played(*steps: str) -> list[str]:
    """Play steps `SECONDS ALERTS[+URGENT]`: so many alerts more have gathered by then. Returns what leaves, and when.

    `12 of 3` is a message of three alerts after twelve seconds, with `storm` while one goes on.
    """
    group, waiting, urgent, left = GroupState(), 0, 0, []
    for step in steps:
        at, _, alerts = step.partition(" ")
        plain, _, more = alerts.partition("+")
        waiting, urgent = waiting + int(plain) + int(more or 0), urgent + int(more or 0)
        departure = grouping.decide(group, waiting, urgent, NOON + timedelta(seconds=float(at)))
        if departure is not None:
            group, leaves = departure.after, urgent if departure.urgent_alone else waiting
            waiting, urgent = waiting - leaves, 0
            left.append(f"{at} of {leaves}{' storm' * (group.storm_since is not None)}")
    return left


CASES = {
    "the first leaves at once, and the next after a quiet while": (["0 1", "30 1"], ["0 of 1", "30 of 1"]),
    "what comes within the wait leaves as one message": (["0 1", "1 1", "29 1", "30 0"], ["0 of 1", "30 of 2"]),
    "an urgent alert waits as well": (["0 1", "1 0+1", "30 0"], ["0 of 1", "30 of 1"]),
    "nothing leaves when nothing has gathered": (["0 1", "30 0", "60 0"], ["0 of 1"]),
    "20 in one message are none, 21 are a storm": (["0 20", "30 21"], ["0 of 20", "30 of 21 storm"]),
    "a storm is one message, and then a digest": (
        ["0 1", "1 5000", "30 0", "60 4999", "90 0", "930 0"],
        ["0 of 1", "30 of 5000 storm", "930 of 4999 storm"],
    ),
    "the seventh message within ten minutes begins a storm": (
        [f"{seconds} 1" for seconds in range(0, 270, 30)],
        [*(f"{seconds} of 1" for seconds in range(0, 180, 30)), "180 of 1 storm"],
    ),
    "six within ten minutes, again and again, are none": (
        [f"{seconds} 1" for seconds in range(0, 1300, 100)],
        [f"{seconds} of 1" for seconds in range(0, 1300, 100)],
    ),
    "the first urgent alert of a storm of e-mails leaves at once, the second in the digest": (
        ["0 21", "5 3+1", "6 0+1", "899 0", "900 16"],
        ["0 of 21 storm", "5 of 1 storm", "900 of 20 storm"],
    ),
    "an urgent alert waits in a storm that has had one": (["0 20+1", "5 0+1", "900 0"], ["0 of 21 storm", "900 of 1"]),
    "a storm ends with a digest of fewer than 20": (
        ["0 21", "900 19", "931 1"],
        ["0 of 21 storm", "900 of 19", "931 of 1"],
    ),
    "a storm after which nothing comes has ended": (["0 21", "5000 1"], ["0 of 21 storm", "5000 of 1"]),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "left"), CASES.values(), ids=CASES)
def test_what_leaves(steps: list[str], left: list[str]) -> None:
    assert played(*steps) == left


def test_a_shorter_interval_of_the_settings_holds_for_urgent_alerts_too() -> None:
    sent, second = GroupState(NOON), timedelta(seconds=1)
    assert [grouping.decide(sent, 1, 1, NOON + wait, second) is None for wait in (second / 2, second)] == [True, False]


def test_a_clock_that_was_ahead_keeps_nothing_back() -> None:
    ahead = grouping.decide(GroupState(), 21, 0, NOON + timedelta(days=1))
    assert ahead is not None
    assert grouping.decide(ahead.after, 1, 0, NOON) is not None


@pytest.mark.parametrize(
    ("last", "oldest", "until", "due"),
    [
        (None, 1, None, True),
        (None, 0.9, None, False),
        (60, 1, None, True),
        (59, 30, None, False),
        (-5, 1, None, True),
        (None, -5, None, True),
        (None, None, -1, False),
        (59, 30, 0, True),
        (60, 1, -1, True),
    ],
)
def test_a_summary_of_delayed_alerts_gathers_a_minute_and_leaves_once_an_hour_and_what_continues_waits_for_it(
    last: float | None, oldest: float | None, until: float | None, due: bool
) -> None:
    def ago(minutes: float | None) -> datetime | None:
        return None if minutes is None else NOON - timedelta(minutes=minutes)

    assert grouping.is_due(ago(last), ago(oldest), ago(until), NOON) == due
