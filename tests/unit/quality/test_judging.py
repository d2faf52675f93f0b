"""Judging a day by the rules for single events."""

from tocsin.quality.judging import are_few


def test_a_share_is_compared_as_great_expectations_does() -> None:
    for judged in (20, 100, 999, 1_000):
        for broken in range(judged + 1):
            for hundredths in range(1, 101):
                mostly = hundredths / 100
                passed = are_few(broken, broken / judged, mostly)
                assert passed == (not broken or (judged - broken) / judged >= mostly), (judged, broken, mostly)
    assert are_few(7, 0.07, 0.93)
    assert are_few(0, None, 1.0)
