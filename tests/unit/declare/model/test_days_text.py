from datetime import date

import pytest

from tocsin.declare.model.durations import days_text


@pytest.mark.parametrize(
    ("days", "text"),
    [
        ([17], "2026-06-17"),
        ([29, 17], "2026-06-17, 2026-06-29 (2 days)"),
        ([17, 18, 19, 19], "2026-06-17 to 2026-06-19 (3 days)"),
        ([29, 18, 17, 30, 3], "2026-06-03, 2026-06-17 to 2026-06-18, 2026-06-29 to 2026-06-30 (5 days)"),
        ([1, 3, 5, 7, 9], "2026-06-01 to 2026-06-09 (5 of the 9 days)"),
    ],
)
def test_days_are_written_as_what_follows_one_another(days: list[int], text: str) -> None:
    assert days_text(date(2026, 6, day) for day in days) == text
