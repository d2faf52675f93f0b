"""Report which windows are closed between two boundaries of a detector's batches, so that e-mails need not wait.

The ingest says up to when all that came in is in the events topic. Once the query has read that topic up to the end it
had then, all that belongs to windows that ended a lateness before is found. Nothing is dropped because of it: Spark's
own watermark moves at boundaries alone.
"""

from __future__ import annotations

import time
from datetime import timedelta

from tocsin.ingest.backlog import FeederLag
from tocsin.ingest.spark.passed_on import PassedOn
from tocsin.model.detector import ScoreKind
from tocsin.sparkjob.query.work import REAL_TIME, Run

_LOOK_SECONDS = 1.0
_WAIT_SECONDS = 30.0


class ClosedWindows:
    """Keeps `complete_through` in the report of one detector true, while findings that it sent may wait for it."""

    def __init__(self, ingest: FeederLag, window: timedelta, lateness: timedelta) -> None:
        """Report nothing before `begin`."""
        self._passed_on, self._lateness = PassedOn(ingest), lateness
        self._wait_seconds = (window + lateness).total_seconds() + _WAIT_SECONDS
        self._is_reporting = False
        self._sent, self._sent_at, self._looked_at = -1.0, 0.0, 0.0

    def begin(self, run: Run, mode: str, kind: ScoreKind | None, *, is_draining: bool) -> None:
        """Begin with a query. Report nothing while it drains, in micro-batch mode, and for scores that can fall."""
        self._passed_on.forget()
        self._is_reporting = mode == REAL_TIME and kind is ScoreKind.RISING and not is_draining
        self._sent = -1.0  # what was sent before may wait
        run.reporter.update(complete_through=None)

    def look(self, run: Run) -> None:
        """Report what is closed by now; to be called about four times a second. Nothing while Kafka does not answer."""
        if not self._is_reporting or not self._may_be_awaited(run):
            return
        moment = self._passed_on.look(run)
        if moment is not None:
            run.reporter.update(complete_through=moment - self._lateness)

    def _may_be_awaited(self, run: Run) -> bool:
        """Return whether the window of a finding that was sent can still be open; look once a second."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at, sent = now, run.read_positions.sent()
            if sent != self._sent:
                self._sent, self._sent_at = sent, now
        return now - self._sent_at < self._wait_seconds
