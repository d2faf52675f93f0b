from datetime import datetime
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.alerts.scene import MINUTE, NOON, SECOND, finding
from tocsin.alerts import finding_merging
from tocsin.alerts.finding_merging import LastWord, StoredFinding, StreamWord
from tocsin.declare.model.finding import Finding, Origin

V1 = LastWord("v1", "nightly")


def kept(*records: Finding, declared: str | None = "v1", last_word: LastWord | None = None) -> StoredFinding:
    """What is kept of a finding after these records, in their order."""
    folded = finding_merging.first(records[0], declared, last_word, NOON + MINUTE)
    for record in records[1:]:
        folded = finding_merging.after(folded, record, declared, last_word)
    return folded


def backfill(score: float, version: str = "v1") -> Finding:
    return finding(score, origin=Origin.BACKFILL, version=version, run_id="nightly")


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([finding(60)], None),
        ([backfill(60)], None),
        ([finding(60), backfill(65)], 60),
        ([backfill(65), finding(60)], 60),
        ([finding(60), backfill(65), finding(62)], 62),
        ([finding(62), backfill(65), finding(60)], 62),
        ([finding(60), backfill(65), backfill(66)], 60),
        ([finding(120), backfill(90), backfill(85)], 120),
        ([backfill(65), finding(120)], 120),
        ([backfill(65), finding(120), finding(60), backfill(65)], 120),
    ],
)
def test_what_the_stream_said_last_is_kept_beside_a_backfill_which_has_the_last_word_also_when_lower(
    records: list[Finding], said: float | None
) -> None:
    one = kept(*records)
    assert (one.stream.score if one.stream else None) == said
    backfills = [record for record in records if record.origin is Origin.BACKFILL]
    assert one.finding == (backfills or records)[-1]


def test_what_was_said_tells_version_level_limit_and_when() -> None:
    said = kept(finding(120, at_least=True, detected_at=NOON + SECOND), backfill(130)).stream
    assert said == StreamWord(
        version="v1", level="urgent", score=120, limit=100, at_least=True, detected_at=NOON + SECOND
    )


def test_a_newer_stream_takes_the_place_of_an_older_backfill_and_not_the_other_way_round() -> None:
    newer = finding(70, version="v2")
    for records in ([backfill(65), newer], [finding(60), backfill(65), newer], [newer, backfill(65)]):
        one = kept(*records, declared="v2")
        assert (one.finding.version, one.finding.origin, one.stream) == ("v2", Origin.STREAM, None)
    late = kept(backfill(65, "v2"), finding(60), declared="v2")
    assert (late.finding.version, late.finding.origin) == ("v2", Origin.BACKFILL)
    assert late.stream is not None
    assert late.stream.version == "v1"


def test_a_record_that_comes_again_changes_nothing() -> None:
    for records in ([finding(60)], [finding(60), backfill(65)], [backfill(65), finding(60), finding(62)]):
        before = kept(*records)
        for again in records[1:] or records:
            if again is records[-1] or again.origin is Origin.STREAM:
                assert finding_merging.after(before, again, "v1", V1) == before


@pytest.mark.parametrize(
    ("version", "declared", "counts"),
    [("v1", "v1", False), ("v1", "v2", False), ("v2", "v2", True), ("v2", "v1", False), ("v2", None, False)],
)
def test_what_a_day_that_is_backfilled_has_not_got_counts_only_for_a_newer_version(
    version: str, declared: str | None, counts: bool
) -> None:
    one = kept(finding(60, version=version), declared=declared, last_word=V1)
    assert (one.superseded_at is None) == counts
    assert one.superseded_by == ("" if counts else "nightly")
    assert finding_merging.has_last_word("v1", version, declared) != counts


def test_a_superseded_finding_comes_back_with_a_newer_version_or_a_backfill_that_finds_it() -> None:
    gone = kept(finding(60), last_word=V1)
    assert gone.superseded_at == NOON + MINUTE
    same = finding_merging.after(gone, finding(90), "v1", V1)
    assert (same.finding.score, same.superseded_at, same.superseded_by) == (90, NOON + MINUTE, "nightly")
    for back in (
        finding_merging.after(gone, finding(70, version="v2"), "v2", V1),
        finding_merging.after(gone, backfill(60), "v1", V1),
    ):
        assert (back.superseded_at, back.superseded_by) == (None, "")


# --- two records of one finding ---------------------------------------------------------------------------------------

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
    chosen = finding_merging.choose_record(finding(300, version=stored), finding(60, version=new), declared)
    assert chosen.version == stays


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
