"""Do work that needs something outside, again and again until it is there, and say meanwhile what is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from tocsin.kafka.reporter import Reporter
from tocsin.model.errors import TransientError
from tocsin.model.job_report import JobState

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
_log = structlog.get_logger()


class Insistence:
    """Insists on what a job does, unless the job is told to stop. For one thread."""

    def __init__(
        self, reporter: Reporter, stop: threading.Event, wait: Callable[[float], object] | None = None
    ) -> None:
        """Report to `reporter`; between attempts `wait` so many seconds, else for `stop`."""
        self._reporter, self._stop, self._wait = reporter, stop, wait or stop.wait
        self._trouble = ""

    def on(self, work: Callable[[], object]) -> bool:
        """Do `work` until it raises no TransientError; False when told to stop before that."""
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                work()
                return True
            except TransientError as error:
                self._say(str(error))
                self._wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        return False

    def resumed(self) -> None:
        """Note that all goes well, whatever was missing before."""
        if self._trouble:
            _log.info("resumed", after=self._trouble)
        self._trouble = ""

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("waiting", reason=trouble)
        self._trouble = trouble
        self._reporter.update(state=JobState.WAITING, reason=trouble)
