"""In what findings of stream and batch differ, and which reasons are known or proved."""

import itertools
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.rig.samples.findings import NOON, V1, V2, found, streamed
from tocsin.declare.model.finding import next_rung
from tocsin.detect.spark.findings import rungs
from tocsin.history.backfill.parity.comparison import (
    Difference,
    DifferenceReason,
    ReportedFinding,
    Side,
    agree,
    compare,
)
from tocsin.history.backfill.parity.reasons import (
    Circumstances,
    HeldModel,
    Lack,
    Recomputation,
    explained,
    proved,
    unexplained,
)
from tocsin.platform.code_versions import Version


def test_equal_findings_are_the_same_whatever_their_order() -> None:
    stream = [streamed(60, 20), streamed(70, 0)]
    result = compare(stream, [found(70, 0), found(60, 20)])
    assert (result.stream, result.batch, result.same, result.differences) == (2, 2, 2, ())


def test_what_only_one_side_has_and_what_differs_comes_with_both_sides_by_time() -> None:
    result = compare([streamed(60, 20), streamed(70, 0)], [found(61, 20), found(80, 10)])
    assert result.same == 0
    assert [one.side for one in result.differences] == [Side.STREAM, Side.BATCH, Side.BOTH]
    assert result.differences[0].start == NOON
    last = result.differences[2]
    assert (last.stream, last.batch) == (
        ReportedFinding(version=V1, level="email", score=60),
        ReportedFinding(version=V1, level="email", score=61),
    )


def test_a_bound_is_a_rung_that_the_stream_really_emits() -> None:
    ladder = list(rungs(100))[:40]
    assert [next_rung(rung) for rung in ladder[:-1]] == ladder[1:]
    for low, high in itertools.pairwise(ladder):
        bound = ReportedFinding(version=V1, level="urgent", score=low, at_least=True)
        assert agree(bound, ReportedFinding(version=V1, level="urgent", score=high - 1))
        assert not agree(bound, ReportedFinding(version=V1, level="urgent", score=high)), "one rung low and no more"
        assert not agree(bound, ReportedFinding(version=V1, level="urgent", score=low - 1))


@pytest.mark.parametrize(("stream", "final"), [(100, 99), (99, 100), (101, 102)])
def test_an_exact_score_differs_by_one(stream: int, final: int) -> None:
    assert len(compare([streamed(stream)], [found(final)]).differences) == 1


def test_a_level_is_compared_exactly_even_when_scores_agree() -> None:
    low = ReportedFinding(version=V1, level="email", score=101)
    assert not agree(low, ReportedFinding(version=V1, level="urgent", score=101))


def test_sums_in_another_order_are_the_same() -> None:
    assert compare([streamed(sum([0.1] * 603))], [found(60.3)]).differences == ()


HOUR = timedelta(hours=1)


def ran(version: str, first: datetime, last: datetime | None = None) -> Version:
    return Version(version=version, fingerprint="f", first_at=first, last_at=last or first)


def only_batch(score: float = 60) -> Difference:
    return compare([], [found(score)]).differences[0]


def only_stream(version: str = V1) -> Difference:
    return compare([streamed(60, version=version)], []).differences[0]


def both(stream: float, batch: float) -> Difference:
    return compare([streamed(stream)], [found(batch)]).differences[0]


def reason(one: Difference, known: Circumstances) -> DifferenceReason:
    (answer,) = explained([one], known)
    assert bool(answer.why) == (answer.reason is not DifferenceReason.UNEXPLAINED)
    return answer.reason


SAME = Circumstances(version=V1, ran=[ran(V1, NOON - HOUR)], watermark=NOON + HOUR)


def test_nothing_known_explains_nothing() -> None:
    for one in (only_batch(), only_stream(), both(60, 61)):
        assert reason(one, SAME) is DifferenceReason.UNEXPLAINED


def test_a_finding_of_another_version_says_so_itself() -> None:
    assert reason(only_stream(V2), SAME) is DifferenceReason.VERSION
    (one,) = compare([streamed(60, version=V2)], [found(61)]).differences
    assert reason(one, SAME) is DifferenceReason.VERSION


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([ran(V2, NOON - HOUR)], DifferenceReason.VERSION),  # the backfill's never ran
        ([ran(V2, NOON - HOUR), ran(V1, NOON + HOUR)], DifferenceReason.VERSION),  # it ran only later
        ([ran(V1, NOON - 2 * HOUR), ran(V2, NOON - HOUR)], DifferenceReason.VERSION),  # another had taken over
        (
            [ran(V1, NOON - 2 * HOUR, NOON - HOUR / 2), ran(V2, NOON - HOUR)],
            DifferenceReason.UNEXPLAINED,
        ),  # but it came back
        ([ran(V1, NOON - HOUR), ran(V2, NOON + HOUR)], DifferenceReason.UNEXPLAINED),  # another took over later
        ([ran(V1, NOON + HOUR)], DifferenceReason.UNEXPLAINED),  # a first start reads all that Kafka holds
    ],
)
def test_what_only_the_batch_has_may_be_owed_to_the_version_that_ran_then(
    versions: list[Version], expected: DifferenceReason
) -> None:
    assert reason(only_batch(), Circumstances(version=V1, ran=versions)) is expected


def test_a_window_is_open_until_the_watermark_has_passed_its_end() -> None:
    for seconds, expected in ((9, DifferenceReason.OPEN), (10, DifferenceReason.UNEXPLAINED)):
        known = Circumstances(version=V1, watermark=NOON + timedelta(seconds=seconds))
        assert reason(only_batch(), known) is expected
    assert (
        reason(only_batch(), Circumstances(version=V1, windowed=False, watermark=NOON)) is DifferenceReason.UNEXPLAINED
    )


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, DifferenceReason.MISSING),
        (-5, 5, DifferenceReason.MISSING),
        (5, None, DifferenceReason.MISSING),
        (None, 1, DifferenceReason.MISSING),
        (10, 20, DifferenceReason.UNEXPLAINED),  # begins when the window ends
        (-10, 0, DifferenceReason.UNEXPLAINED),  # ends when it begins
    ],
)
def test_data_is_missing_in_windows_that_the_gap_touches(
    since: int | None, until: int | None, expected: DifferenceReason
) -> None:
    edges = [None if edge is None else NOON + timedelta(seconds=edge) for edge in (since, until)]
    known = Circumstances(version=V1, lacks=[Lack(edges[0], edges[1], "a gap")])
    assert reason(both(60, 80), known) is expected


def test_a_single_event_lies_in_a_gap_that_begins_with_it() -> None:
    assert Lack(NOON, None, "a gap").touches(NOON, NOON)
    assert not Lack(None, NOON, "a gap").touches(NOON, NOON)


# --- proofs ----------------------------------------------------------------------------------------------------------


def told(score: float) -> ReportedFinding:
    return ReportedFinding(version=V1, level="urgent" if score > 100 else "email", score=score)


def prove(
    one: Difference, whole: float | None, without: float | None, reason: DifferenceReason = DifferenceReason.LATE
) -> Difference:
    """With all events the detector finds `whole`, and `without` some of them."""
    key = one.finding_id
    trial = Recomputation(reason, "left out", {} if without is None else {key: told(without)})
    (answer,) = proved([one], {} if whole is None else {key: told(whole)}, [trial])
    return answer


def test_late_is_claimed_where_leaving_it_out_gives_the_score_of_the_stream() -> None:
    assert prove(both(60, 80), 80, 60).reason is DifferenceReason.LATE
    assert prove(only_batch(60), 60, None).reason is DifferenceReason.LATE
    assert prove(only_stream(), None, 60).reason is DifferenceReason.LATE  # a detector that finds too few events


@pytest.mark.parametrize(("stream", "without"), [(70, 60), (70, 69), (60, None)])
def test_late_is_not_claimed_where_the_score_is_another(stream: float, without: float | None) -> None:
    answer = prove(both(stream, 80), 80, without)
    assert answer.reason is DifferenceReason.UNEXPLAINED
    assert f"the stream found email {stream}" in answer.why


def test_a_lower_bound_of_the_stream_is_proved_within_its_rung() -> None:
    (one,) = compare([streamed(111, at_least=True)], [found(300)]).differences
    assert prove(one, 300, 121).reason is DifferenceReason.LATE
    assert prove(one, 300, 122).reason is DifferenceReason.UNEXPLAINED


def test_a_trial_proves_nothing_where_history_no_longer_gives_what_was_published() -> None:
    answer = prove(both(60, 80), 81, 60)
    assert answer.reason is DifferenceReason.UNEXPLAINED
    assert "run the day again" in answer.why


def test_a_trial_proves_nothing_where_history_gives_a_lower_bound() -> None:
    one = both(60, 111)
    trial = Recomputation(DifferenceReason.LATE, "late", {one.finding_id: told(60)})
    for at_least, expected in ((False, DifferenceReason.LATE), (True, DifferenceReason.UNEXPLAINED)):
        whole = told(111).model_copy(update={"at_least": at_least})
        assert proved([one], {one.finding_id: whole}, [trial])[0].reason is expected


def test_the_first_trial_that_proves_it_is_believed_and_earlier_reasons_stay() -> None:
    one = both(60, 80)
    trials = [
        Recomputation(DifferenceReason.LATE, "late", {one.finding_id: told(70)}),
        Recomputation(DifferenceReason.QUARANTINED, "quarantined", {one.finding_id: told(60)}),
        Recomputation(DifferenceReason.MISSING, "imported", {one.finding_id: told(60)}),
    ]
    open_one = only_batch().because(DifferenceReason.OPEN, "open")
    answers = proved([one, open_one], {one.finding_id: told(80)}, trials)
    assert [answer.reason for answer in answers] == [DifferenceReason.QUARANTINED, DifferenceReason.OPEN]
    assert unexplained(answers) == []


def test_without_late_events_the_difference_stays_unexplained_and_says_what_was_looked_at() -> None:
    one = both(60, 80)
    (answer,) = proved([one], {one.finding_id: told(80)}, [])
    assert (answer.reason, "no event" in answer.why) == (DifferenceReason.UNEXPLAINED, True)


@pytest.mark.parametrize(
    ("streamed_by", "made", "expected"),
    [
        ("b", NOON - HOUR, DifferenceReason.UNEXPLAINED),
        ("", NOON - HOUR, DifferenceReason.UNEXPLAINED),  # an old finding names none
        ("a", NOON - HOUR, DifferenceReason.MODEL),
        ("b", NOON + HOUR, DifferenceReason.MODEL),  # trained when the window had closed
    ],
)
def test_windows_that_another_model_judged_differ(streamed_by: str, made: datetime, expected: DifferenceReason) -> None:
    of_stream, of_batch = (
        ReportedFinding(version=V1, level="email", score=1, model=name) for name in (streamed_by, "b")
    )
    one = both(60, 61).model_copy(update={"stream": of_stream, "batch": of_batch})
    models = [HeldModel(text="b", since=NOON - HOUR, until=None, made_at=made)]
    assert reason(one, replace(SAME, models=models)) is expected
