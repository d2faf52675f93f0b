"""A drain that an operator has asked for: the job reads on until it has read all that there was, and says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import structlog

from tocsin.detect.drain_request import asked_at, finish_drain
from tocsin.kafka.offsets import Offsets
from tocsin.model.errors import TransientError

log = structlog.get_logger()


class AskedDrain:
    """Looks after the drain of one job; what is done with a job that has read all is not its business."""

    def __init__(self, state: Path, job: str) -> None:
        self._state, self._job = state, job
        self._asked_at: float | None = None
        self._ends: Offsets = {}

    def look(
        self,
        bounds: Callable[[], tuple[Offsets, Offsets]],
        ingest_lag: Callable[[], timedelta],
        position: Offsets,
    ) -> None:
        """Finish the drain if there is one and `position`, from which a restart would go on, has come to its end.

        Its end is that of the topic when the drain was first seen and the ingest had no backlog: never before what had
        come in when it was asked. While Kafka does not answer, nothing is finished.

        Args:
            bounds: see `Topic.bounds`.
            ingest_lag: how far behind the ingest says it is; 0 when it keeps up or says nothing.
            position: what the last finished batch has committed.
        """
        asked = asked_at(self._state, self._job)
        if asked != self._asked_at:
            try:
                if asked is not None and ingest_lag():
                    return
                self._ends = {} if asked is None else bounds()[1]
            except TransientError:
                return
            self._asked_at = asked
            if asked is not None:
                log.info("drains, to be stopped then", until=self._ends)
        if asked is not None and all(position.get(partition, 0) >= end for partition, end in self._ends.items()):
            if finish_drain(self._state, self._job, asked):
                log.info("has drained", position=position)
            self._asked_at = None
