"""Which records a search blames, and what stays of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.spark.poison import Poison, Span, find_poison


@given(st.sets(st.integers(10, 99)), st.integers(10, 60), st.integers(61, 100))
def test_exactly_the_records_that_fail_are_found(bad: set[int], start: int, end: int) -> None:
    def failure_of(span: Span) -> str:
        return "refused" if bad & set(range(span.start, span.end)) else ""

    found = list(find_poison(Span(0, start, end), failure_of))
    assert found == [(Span(0, one, one + 1), "refused") for one in sorted(bad) if start <= one < end]


def test_what_fails_together_alone_blames_no_record() -> None:
    assert list(find_poison(Span(0, 0, 8), lambda span: "" if span.end - span.start < 8 else "too much")) == []


def test_failures_count_at_one_place_over_restarts_and_not_when_kafka_or_a_disk_is_the_cause(tmp_path: Path) -> None:
    assert Poison(tmp_path, "raw.a").count_failure("a record is too long", {0: 7})
    assert not Poison(tmp_path, "raw.a").count_failure("org.apache.kafka.common.errors.TimeoutException", {0: 7})
    assert not Poison(tmp_path, "raw.a").count_failure("No space left on device", {0: 7})
    assert Poison(tmp_path, "raw.a").count_failure("a record is too long", {0: 7})
    assert '"failures": 2' in (tmp_path / "set-aside.json").read_text()
    assert Poison(tmp_path, "raw.a").count_failure("a record is too long", {0: 8})
    assert '"failures": 1' in (tmp_path / "set-aside.json").read_text()
    assert Poison(tmp_path, "raw.a").sentence == ""


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "set-aside.json").write_text("{")
    with pytest.raises(ValueError, match="Invalid JSON"):
        Poison(tmp_path, "raw.a")
