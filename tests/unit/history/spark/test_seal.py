from __future__ import annotations

import pytest

from tocsin.history.spark.seal import tasks


@pytest.mark.parametrize(
    ("rows", "buckets", "expected"),
    [(0, 32, 1), (200_000, 32, 1), (200_001, 32, 2), (900_000, 32, 8), (25_000_000, 32, 32), (10**9, 7, 7), (5, 1, 1)],
)
def test_a_small_day_is_written_by_few_tasks_and_each_writes_whole_buckets(
    rows: int, buckets: int, expected: int
) -> None:
    assert tasks(rows, buckets) == expected
    assert buckets % tasks(rows, buckets) == 0
