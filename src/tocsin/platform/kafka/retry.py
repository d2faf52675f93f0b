"""Try again what fails for lack of something outside, at growing intervals, and report meanwhile what is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.platform.kafka.reporter import Reporter

FIRST_SECONDS, LONGEST_SECONDS = 0.25, 5.0
_Result = TypeVar("_Result")
_log = structlog.get_logger()


class Backoff:
    """Intervals between attempts, doubled from `first` up to `longest` seconds. For one thread."""

    def __init__(self, first: float, longest: float) -> None:
        """Begin with an attempt that is due at once."""
        self._first, self._longest, self._seconds, self._next = first, longest, 0.0, 0.0

    @property
    def is_due(self) -> bool:
        """Return whether the interval since the last failure has passed."""
        return time.monotonic() >= self._next

    def failed(self, longest: float | None = None) -> float:
        """Return for how many seconds to wait after this failure, at most `longest` where this one has its own."""
        self._seconds = min(max(self._first, 2 * self._seconds), longest or self._longest)
        self._next = time.monotonic() + self._seconds
        return self._seconds

    def reset(self) -> None:
        """Begin again after a success."""
        self._seconds = self._next = 0.0


class Retry:
    """Retries the work of a job, unless the job is asked to stop. For one thread."""

    def __init__(
        self,
        reporter: Reporter,
        stop: threading.Event,
        *,
        wait: Callable[[float], object] | None = None,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        """Report to `reporter`; between attempts `wait` so many seconds, else for `stop`."""
        self._reporter, self._stop, self._wait = reporter, stop, wait or stop.wait
        self._backoff = Backoff(first_seconds, LONGEST_SECONDS)
        self._trouble: str | None = None

    def call(self, work: Callable[[], _Result]) -> _Result | None:
        """Return the result of `work` once it raises no TransientError; None when asked to stop before that."""
        while not self._stop.is_set():
            try:
                result = work()
            except TransientError as error:
                self.failed(str(error))
            else:
                self._backoff.reset()
                return result
        return None

    def failed(self, trouble: str, longest_seconds: float | None = None) -> None:
        """Report why an attempt has failed, and wait until the next is due."""
        self.report(trouble)
        self._wait(self._backoff.failed(longest_seconds))

    def report(self, trouble: str) -> None:
        """Report and log that the job waits for something, unless that is the last that was reported."""
        if trouble != self._trouble:
            _log.warning("waiting", reason=trouble)
            self._trouble = trouble
            self._reporter.update(state=JobState.WAITING, reason=trouble)

    def recovered(self, trouble: str = "") -> None:
        """Report that the work goes on, or the `trouble` that is left; attempts come at short intervals again."""
        self._backoff.reset()
        if trouble:
            self.report(trouble)
        elif self._trouble != "":
            if self._trouble:
                _log.info("resumed", after=self._trouble)
            self._trouble = ""
            self._reporter.update(state=JobState.RUNNING, reason="")
