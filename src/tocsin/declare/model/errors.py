"""The errors of Tocsin: one root, three branches by what the reader does next.

::

    TocsinError
      ConfigError      fix the file or the setting, then deploy again (lists every fault at once)
      InvalidEvent     never retry: the record goes to quarantine
      TransientError   retry: the cause is outside and may pass (Kafka, SMTP, a locked database)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class TocsinError(Exception):
    """Root of all errors that Tocsin raises on purpose."""


@dataclass(frozen=True)
class Fault:
    """One thing wrong in one place of a file or of the settings; `line` is 1-based.

    Attributes:
        what: what is wrong and what to write instead, as a sentence without a full stop.
    """

    where: str
    what: str
    key: str | None = None
    line: int | None = None
    nearest: str | None = None

    def __str__(self) -> str:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        subject = f"{place}: {self.key}: " if self.key else f"{place}: "
        hint = f"; did you mean '{self.nearest}'?" if self.nearest else ""
        return f"{subject}{self.what}{hint}"


class ConfigError(TocsinError):
    """A file or setting that must be fixed before a deploy; a retry does not help."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))

    @classmethod
    def one(cls, where: str | Path, what: str, *, key: str | None = None, line: int | None = None) -> ConfigError:
        """A ConfigError with a single fault."""
        return cls([Fault(str(where), what, key=key, line=line)])


class InvalidEvent(TocsinError):
    """A record that can never be used; a retry does not help, quarantine does."""

    def __init__(self, reasons: Sequence[str], topic: str, partition: int, offset: int) -> None:
        self.reasons, self.topic, self.partition, self.offset = tuple(reasons), topic, partition, offset
        super().__init__(f"{topic}[{partition}]@{offset}: {'; '.join(reasons)}")


class TransientError(TocsinError):
    """The cause is outside and may pass; retrying helps."""


class StartAgain(TocsinError):
    """The job is to begin anew, as after its start, by the same process; no failure."""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name closest to `name`, whatever its case, or None when none is close."""
    by_small = {each.lower(): each for each in reversed(list(valid))}  # of two that differ by case, the first
    matches = difflib.get_close_matches(name.lower(), list(by_small), n=1, cutoff=0.6)
    return by_small[matches[0]] if matches else None
