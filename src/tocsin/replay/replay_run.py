"""One replay: its range, its pace, and where it goes on after it was broken off."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol, Self

from pydantic import BaseModel

from tocsin.kafka.reader import TopicReader
from tocsin.model.errors import ConfigError
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.replay.outcomes import Counted, Progress, Ticket
from tocsin.replay.recorded import RecordedEvent, ReplayRange, find_range, read_range
from tocsin.runtime import state_file

_COMMIT_SECONDS = 1.0


class Target(Protocol):
    """Where events are sent."""

    name: str

    def refuses(self, event: RecordedEvent) -> str | None:
        """Say why `event` is left out; None if it is sent."""

    def send(self, event: RecordedEvent, ticket: Ticket) -> None:
        """Send `event`, now or as soon as it can; `ticket` is settled when that is done."""

    def finish(self) -> None:
        """Wait until all tickets are settled."""


class ReplayPace(BaseModel, frozen=True):
    """How fast events follow one another.

    Attributes:
        speed: so many times as fast as they came; 0 for as fast as it goes.
        rate: so many per second at most; 0 for no limit.
    """

    speed: float = 1.0
    rate: float = 0.0

    def seconds(self, span: float, count: int) -> float:
        """Estimate how long `count` events take that came within `span` seconds."""
        by_speed = span / self.speed if self.speed else 0.0
        return max(by_speed, count / self.rate if self.rate else 0.0)


class Replay:
    """One replay of a source. Its consumer group is its own, so nobody else's reading moves.

    Attributes:
        range: what is replayed; that of the first run when this one goes on from there.
        resumed: it goes on.
    """

    def __init__(
        self, settings: Settings, source: Source, name: str, wanted: tuple[datetime, datetime], *, restart: bool = False
    ) -> None:
        """Find the range, or the one of an earlier run under the same name that was not finished.

        Args:
            settings: of the installation.
            source: whose events.
            name: of the replay.
            wanted: event times from the first up to the second.
            restart: forget an earlier run.

        Raises:
            ConfigError: the topic does not exist.
            TransientError: Kafka cannot be reached; a retry helps.
            OSError: the state folder cannot be written.
        """
        self._file = settings.state / "replays" / f"{source.name}.{name}.json"
        self._topic = TopicReader(settings, f"replay.{source.name}.{name}", settings.names.events(source.name))
        if not self._topic.partitions():
            raise ConfigError.one(self._topic.name, "does not exist; `tocsin dev up` creates the topics of all sources")
        earlier = None if restart else state_file.read(self._file, ReplayRange, None)
        self.resumed = earlier is not None
        self.range = earlier or find_range(self._topic, source, *wanted)
        committed = self._topic.committed(self.range.ends) if self.resumed else {}
        self._position = {p: max(start, committed.get(p, 0)) for p, start in self.range.starts.items()}

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
        """
        state_file.write(self._file, ReplayRange, self.range)
        committed = time.monotonic()
        try:
            for event, reason in _paced(read_range(self._topic, self.range, self._position), pace, target, stop):
                ticket = progress.begin(event)
                if reason is not None:
                    progress.leave_out(ticket, reason)
                else:
                    target.send(event, ticket)
                if time.monotonic() - committed > _COMMIT_SECONDS:
                    self._topic.commit(progress.position())
                    committed = time.monotonic()
        finally:
            target.finish()
            self._topic.commit(progress.position())
        if stop.is_set():
            return False
        self._file.unlink(missing_ok=True)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._topic.close()


def name_of(*texts: str) -> str:
    """Name a replay by what it was asked for, so that the same call goes on with it."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def _paced(
    events: Iterator[RecordedEvent], pace: ReplayPace, target: Target, stop: threading.Event
) -> Iterator[tuple[RecordedEvent, str | None]]:
    """Hold each event back until it is due, but for those that the target refuses; yields the reason with these."""
    began, first = time.monotonic(), None
    sent = 0
    for event in events:
        if stop.is_set():
            return
        reason = target.refuses(event)
        if reason is None:
            first = first or event.time
            due = (event.time - first).total_seconds() / pace.speed if pace.speed else 0.0
            due = max(due, sent / pace.rate if pace.rate else 0.0)
            if (ahead := began + due - time.monotonic()) > 0 and stop.wait(ahead):
                return
            sent += 1
        yield event, reason
