"""The judge of the kills sees what it must see."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from tests.faults.findings import Differences, expected_notifications
from tests.rig.load import Truth, level, rung_below
from tests.rig.observed import DETECTOR
from tocsin.declare.model.finding import Finding, finding_id

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_800_000_000_000_000


def _truth(**counts: int) -> Truth:
    truth = Truth()
    for user, count in counts.items():
        truth.failed[user, START] = count
    return truth


def _finding(user: str, score: float, **changed: object) -> Finding:
    start = EPOCH + timedelta(microseconds=START)
    end = start + timedelta(seconds=10)
    fields = {
        "finding_id": finding_id(DETECTOR, {"user_id": user}, start, end), "detector": DETECTOR, "version": "v",
        "entity": {"user_id": user}, "window_start": start, "window_end": end, "level": level(score) or "email",
        "score": score, "limit": 5,
    }  # fmt: skip
    return Finding.model_validate({**fields, **changed})


def _told(truth: Truth, findings: Iterable[Finding]) -> Differences:
    return Differences.between(truth, list(findings))


def test_right_findings_make_no_difference() -> None:
    truth = _truth(ann=6, bob=100, eve=130, tom=5)
    records = [
        _finding("ann", 6),
        _finding("bob", 6),
        _finding("bob", 100),
        _finding("eve", 101),
        _finding("eve", 122),
    ]
    assert _told(truth, records) == Differences([], [], [])


@pytest.mark.parametrize(
    ("records", "where"),
    [
        ([], "lost"),
        ([_finding("ann", 61)], "wrong"),
        ([_finding("ann", 60, level="urgent")], "wrong"),
        ([_finding("ann", 60, finding_id="another")], "wrong"),
        ([_finding("ann", 60), _finding("tom", 6)], "wrong"),
        ([_finding("ann", 59)], "unfinished"),
    ],
)
def test_each_fault_is_seen(records: list[Finding], where: str) -> None:
    assert getattr(_told(_truth(ann=60, tom=5), records), where)


def test_above_the_highest_limit_a_score_may_stay_one_rung_behind() -> None:
    truth = _truth(eve=130)
    assert rung_below(130) == 122
    assert not _told(truth, [_finding("eve", 122)]).unfinished
    assert _told(truth, [_finding("eve", 121)]).unfinished


def test_everybody_is_told_the_highest_level_once() -> None:
    expected = {("ann", 0): 60, ("ann", 10): 101, ("bob", 0): 6}
    assert expected_notifications(expected) == {"ann": "urgent", "bob": "email"}
