"""Follow up to when all that came in has been read, by what the job before says."""

from __future__ import annotations

import contextlib
from datetime import datetime

from tocsin.ingest.backlog import FeederLag
from tocsin.ingest.ticks import TickRule
from tocsin.model.errors import TransientError
from tocsin.sparkjob.query.work import Run


class PassedOn:
    """Carries `complete_through` of the feeder on: once the query has read the topic up to the end it had then."""

    def __init__(self, feeder: FeederLag) -> None:
        self._feeder, self._rule = feeder, TickRule()
        self._asked: datetime | None = None

    def forget(self) -> None:
        """Begin anew with another query."""
        self._rule = TickRule()

    def look(self, run: Run) -> datetime | None:
        """Return the latest time before which all that came in has been read; None without a newer one."""
        moment = self._feeder.complete_through()
        if moment is None:
            return None
        if moment != self._asked:
            with contextlib.suppress(TransientError):
                self._rule.ask(moment, run.topics.bounds()[1])
                self._asked = moment
        return self._rule.answer(run.read_positions.offsets()) if self._rule.asks else None
