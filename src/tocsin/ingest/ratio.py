"""How much of what comes in goes to quarantine, lately. Pure."""

from __future__ import annotations

from collections import deque

from tocsin.model.job_report import MUCH_QUARANTINED

RATIO_RECORDS = 1_000
"""The ratio is taken over at least so many of the latest records."""


class Ratio:
    """How much of the latest records went to quarantine, batch by batch."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int]] = deque()
        self._records = self._bad = 0

    def add(self, records: int, bad: int) -> None:
        """A batch of `records`, `bad` of them quarantined; forgets batches that are not needed for 1,000 records."""
        self._batches.append((records, bad))
        self._records, self._bad = self._records + records, self._bad + bad
        while self._records - self._batches[0][0] >= RATIO_RECORDS:
            old_records, old_bad = self._batches.popleft()
            self._records, self._bad = self._records - old_records, self._bad - old_bad

    @property
    def value(self) -> float:
        """From 0 to 1; 0 before 1,000 records."""
        return self._bad / self._records if self._records >= RATIO_RECORDS else 0.0

    def sentence(self) -> str:
        """What is wrong; empty when nothing is."""
        if self.value <= MUCH_QUARANTINED:
            return ""
        return f"{self.value:.1%} of the last {self._records} records went to quarantine"
