"""What a run that keeps nothing tells."""

from __future__ import annotations

from tests.rig.samples.backfills import DAY, NEXT, finding
from tests.unit.alerts.scene import FACTS
from tocsin.alerts.alert_policy import alerts_by_day
from tocsin.history.backfill.trial_report import DayDiff, TrialChange, changes, day_counts, top_entities


def test_alerts_are_counted_as_they_would_open() -> None:
    found = [finding("u", second=s) for s in (0, 10, 3590, 3600)] + [finding("v"), finding("u", NEXT)]
    assert alerts_by_day(reversed(found), FACTS) == {DAY: 3, NEXT: 1}
    assert alerts_by_day([], FACTS) == {}


def test_the_entities_with_most_findings_come_first() -> None:
    found = [finding("few", score=900), *(finding("many", second=10 * n, score=51 + n) for n in range(3))]
    found += [finding(f"once{n:02}") for n in range(20)]
    top = top_entities(found)
    assert [(one.entity["user_id"], one.findings, one.highest_score) for one in top[:2]] == [
        ("many", 3, 53),
        ("few", 1, 900),
    ]
    assert len(top) == 10


def test_two_versions_differ_by_what_they_find_not_by_their_names() -> None:
    old = [finding("same"), finding("gone"), finding("rises", score=60), finding("more", score=60)]
    new = [finding("same").model_copy(update={"finding_id": "0" * 32, "detector": "other"}), finding("comes")]
    new += [finding("rises", score=120, level="urgent"), finding("more", score=61)]
    days, found = changes({DAY: old, NEXT: []}, {DAY: new, NEXT: [finding("late", NEXT)]})
    assert days == [
        DayDiff(day=DAY, same=1, gone=1, new=1, other_level=1, other_score=1),
        DayDiff(day=NEXT, new=1),
    ]
    assert [(one.entity["user_id"], one.before, one.after) for one in found] == [
        ("comes", None, "email 60"),
        ("gone", "email 60", None),
        ("more", "email 60", "email 61"),
        ("rises", "email 60", "urgent 120"),
        ("late", None, "email 60"),
    ]
    assert isinstance(found[0], TrialChange)


def test_each_day_has_a_row_also_one_that_finds_nothing() -> None:
    rows = day_counts(
        {NEXT: [], DAY: [finding("u"), finding("v", level="urgent", score=101)]}, {DAY: 9, NEXT: 4}, {DAY: 2}
    )
    assert [(one.day, one.events, one.findings, one.urgent, one.alerts) for one in rows] == [
        (DAY, 9, 2, 1, 2),
        (NEXT, 4, 0, 0, 0),
    ]
