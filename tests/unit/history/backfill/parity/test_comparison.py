import itertools

import pytest

from tests.rig.samples.findings import NOON, V1, found, streamed
from tocsin.declare.model.finding import next_rung
from tocsin.detect.spark.findings import rungs
from tocsin.history.backfill.parity.comparison import ReportedFinding, Side, agree, compare


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
