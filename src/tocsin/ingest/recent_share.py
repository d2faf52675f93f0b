"""Measure which share of the latest records of a source went to quarantine, or was ignored. Pure."""

from __future__ import annotations

from collections import deque

LATEST_RECORDS = 1_000
"""The share is taken over at least so many of the latest records."""


class RecentShare:
    """Counts batch by batch."""

    def __init__(self, enough_if_all: int = LATEST_RECORDS) -> None:
        """Count nothing yet; so many records are enough where there is no other one among them."""
        self._batches: deque[tuple[int, int]] = deque()
        self._enough_if_all = enough_if_all
        self.records = self._counted = 0

    def add(self, records: int, counted: int) -> None:
        """Count a batch of `records`, `counted` among them; forget batches beyond the latest 1,000 records."""
        self._batches.append((records, counted))
        self.records, self._counted = self.records + records, self._counted + counted
        while self.records - self._batches[0][0] >= LATEST_RECORDS:
            old_records, old_counted = self._batches.popleft()
            self.records, self._counted = self.records - old_records, self._counted - old_counted

    @property
    def value(self) -> float:
        """From 0 to 1; 0 before there are enough records."""
        enough = self._enough_if_all if self._counted == self.records else LATEST_RECORDS
        return self._counted / self.records if self.records >= enough else 0.0
