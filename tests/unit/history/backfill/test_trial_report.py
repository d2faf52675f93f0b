"""What a run that keeps nothing tells."""

from tests.rig.samples.backfills import DAY, NEXT, finding
from tocsin.history.backfill.trial_report import DayDiff, TrialChange, changes


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
