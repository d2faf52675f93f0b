"""What the folder of a test means: its marker and its time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# Seconds that one test may take; the default (pyproject.toml) is that of unit tests.
TIME_LIMITS = {"spark": 180, "airflow": 180, "e2e": 300, "browser": 300, "faults": 900}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = folder_of(item)
        if folder not in TIME_LIMITS:
            continue
        item.add_marker(folder)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIME_LIMITS[folder]))
    # From fast to slow, so that what is plainly broken shows first.
    order = ["unit", *TIME_LIMITS]
    items.sort(key=lambda item: order.index(folder_of(item)))


def folder_of(item: pytest.Item) -> str:
    """The folder under tests/ that a test lies in."""
    return item.path.relative_to(TESTS).parts[0]
