"""A share of the latest records: said over enough records, and forgotten when it is over."""

import pytest

from tocsin.ingest.spark.ingestion import RecentShare


def test_few_records_prove_nothing() -> None:
    share = RecentShare()
    share.add(999, 999)
    assert share.value == 0.0
    share.add(1, 1)
    assert (share.value, share.records) == (1.0, 1_000)


def test_fewer_are_enough_where_there_is_no_other() -> None:
    share = RecentShare(enough_if_all=100)
    share.add(99, 99)
    assert share.value == 0.0
    share.add(1, 1)
    assert share.value == 1.0
    share.add(1, 0)
    assert share.value == 0.0


def test_a_bad_hour_is_forgotten_after_enough_good_records() -> None:
    share = RecentShare()
    share.add(2_000, 2_000)
    share.add(600, 0)
    assert share.value == pytest.approx(2_000 / 2_600)
    share.add(600, 0)
    assert share.value == 0.0
