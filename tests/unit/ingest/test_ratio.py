"""How much goes to quarantine: said over enough records, and forgotten when it is over."""

import pytest

from tocsin.ingest.quarantined_record import QuarantineRatio


def test_few_records_prove_nothing() -> None:
    ratio = QuarantineRatio()
    ratio.add(999, 999)
    assert (ratio.value, ratio.sentence()) == (0.0, "")
    ratio.add(1, 1)
    assert (ratio.value, ratio.sentence()) == (1.0, "100.0% of the last 1000 records went to quarantine")


def test_the_limit_is_strict() -> None:
    ratio = QuarantineRatio()
    ratio.add(1_000, 50)
    assert ratio.sentence() == ""
    ratio.add(0, 0)
    ratio.add(1_000, 51)
    assert ratio.sentence() == "5.1% of the last 1000 records went to quarantine"


def test_a_bad_hour_is_forgotten_after_enough_good_records() -> None:
    ratio = QuarantineRatio()
    ratio.add(2_000, 2_000)
    ratio.add(600, 0)
    assert ratio.value == pytest.approx(2_000 / 2_600)
    ratio.add(600, 0)
    assert ratio.value == 0.0
