"""One replay: its range, its pace, and where it goes on after it was broken off."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from datetime import datetime
from typing import Protocol, Self

from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.ingest.replay.outcomes import Counted, Progress, Ticket
from tocsin.ingest.replay.pace import PacedClock, ReplayPace
from tocsin.ingest.replay.recorded import RecordedEvent, ReplayRange, find_range, read_range
from tocsin.platform import state_file
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topics import missing_topic


class Target(Protocol):
    """Where events are sent."""

    name: str

    def refuses(self, event: RecordedEvent) -> str | None:
        """Say why `event` is left out; None if it is sent."""

    def send(self, event: RecordedEvent, ticket: Ticket) -> None:
        """Send `event`, now or as soon as it can; `ticket` is settled when that is done."""

    def poll(self) -> None:
        """Settle what is done meanwhile; called at least each second while no event is due."""

    def finish(self) -> None:
        """Wait until all tickets are settled that can be."""


class Replay:
    """One replay of a source. It commits nothing to Kafka, so nobody else's reading moves.

    `range` is that of the first run when this one goes on from there.
    """

    def __init__(
        self, settings: Settings, source: Source, name: str, wanted: tuple[datetime, datetime], *, restart: bool = False
    ) -> None:
        """Find the range, or the one of an earlier run under the same `name` that was not finished, unless `restart`.

        `wanted` are event times from the first up to the second.

        Raises:
            ConfigError: the topic does not exist.
            TransientError: Kafka cannot be reached; a retry helps.
            OSError: the state folder cannot be written.
        """
        self._file = settings.state / "replays" / f"{source.name}.{name}.json"
        self._topic = TopicReader(settings, f"replay.{source.name}.{name}", settings.names.events(source.name))
        if not self._topic.partitions():
            raise missing_topic(self._topic.name)
        earlier = None if restart else state_file.read(self._file, ReplayRange, None)
        self.resumed = earlier is not None
        self.range = earlier or find_range(self._topic, source, *wanted)
        # Not in Kafka: an offset that an earlier run of the same call has committed would be taken for one of this run.
        self._position = self.range.starts | self.range.position

    def count(self, target: Target, pace: ReplayPace) -> Counted:
        """Count what is left to send, without sending it."""
        events, left_out = 0, Counter[str]()
        first: datetime | None = None
        last: datetime | None = None
        for event in read_range(self._topic, self.range, self._position):
            if (reason := target.refuses(event)) is not None:
                left_out[reason] += 1
                continue
            events += 1
            first, last = min(first or event.time, event.time), max(last or event.time, event.time)
        span = (last - first).total_seconds() if first and last else 0.0
        return Counted(events=events, left_out=left_out, first=first, last=last, seconds=pace.seconds(span, events))

    def run(self, target: Target, pace: ReplayPace, progress: Progress, stop: threading.Event) -> bool:
        """Send the events until all are sent, or until `stop` is set; returns whether all are.

        An event may be sent again when this was killed: the last second of it.

        Raises:
            TransientError: Kafka or the target cannot be reached; the next run goes on.
            OSError: the state folder cannot be written.
        """

        def keep_up() -> None:
            target.poll()
            self._save_position(progress)

        self._save_position(progress)
        clock = PacedClock(pace, stop, keep_up)
        try:
            for event in read_range(self._topic, self.range, self._position):
                reason = target.refuses(event)
                if reason is None and not clock.wait_for(event.time):
                    break
                ticket = progress.begin(event)
                if reason is not None:
                    progress.leave_out(ticket, reason)
                else:
                    target.send(event, ticket)
                clock.turn()
        finally:
            try:
                target.finish()
            finally:
                self._save_position(progress)
        if stop.is_set():
            return False
        self._file.unlink(missing_ok=True)
        return True

    def _save_position(self, progress: Progress) -> None:
        position = self.range.position | progress.position()
        state_file.write(self._file, ReplayRange, self.range.model_copy(update={"position": position}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._topic.close()


def name_of(*texts: str) -> str:
    """Name a replay by what it was asked for, so that the same call goes on with it."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]
