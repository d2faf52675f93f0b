"""Ticks: the clock of an events topic on which nothing happens.

A watermark follows event times, so on an idle topic it stands still and no window closes. While the ingest has read all
there is, it writes a tick into each partition every second. So does a flow, with the time of a tick that it has read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.model.source import tick_value
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.topic_set import Position

EVERY_SECONDS = 1.0
_MARGIN_SECONDS = 0.01
# The broker dates a record before anybody can read it, and the first append to a partition is slow. What takes longer
# still is in the two seconds that detectors add to the lateness.
_APPEND_SECONDS = 0.2

log = structlog.get_logger()


TrueAfter = Callable[[], tuple[datetime, Position] | None]
"""Reads the moment of the next tick, and then the ends of what must be processed before; None while none is known."""


class TickRule:
    """Decides which tick is true. Pure.

    A tick of time T says that every record appended to the raw topic before T has been processed and its event written.
    To know that, T is read from the broker's clock first, and the ends of the raw topic afterwards: once all that lies
    before these ends is committed, the tick of T may be written. For a flow T is a tick of the events that it reads.
    """

    def __init__(self) -> None:
        self._requests: deque[tuple[datetime, Position]] = deque()
        self._last: datetime | None = None

    def ask(self, moment: datetime, ends: Position) -> None:
        """Remember that the topic ended at `ends`, as read after `moment` was known."""
        if self._requests and self._requests[-1][1] == ends:
            self._requests.pop()  # the later moment says more
        self._requests.append((moment, ends))

    @property
    def asks(self) -> bool:
        """Something was asked that has no answer yet."""
        return bool(self._requests)

    def answer(self, committed: Position) -> datetime | None:
        """Return the time of the latest tick that is true once `committed` is processed; None without a newer one."""
        moment = None
        while self._requests and all(committed.get(p, 0) >= end for p, end in self._requests[0][1].items()):
            moment = self._requests.popleft()[0]
        if moment is None or (self._last is not None and moment <= self._last):
            return None
        self._last = moment
        return moment


def by_clock(reporter: Reporter, ends: Callable[[], Position]) -> TrueAfter:
    """Ask the broker's clock first, and a moment later for the ends of the raw topic."""

    def ask() -> tuple[datetime, Position] | None:
        if (moment := reporter.broker_time()) is None:
            return None
        time.sleep(_APPEND_SECONDS)
        return moment, ends()

    return ask


def pause_after(moment: datetime | None) -> float:
    """Return the seconds until the clock that showed `moment` begins a second: windows end there."""
    return EVERY_SECONDS if moment is None else EVERY_SECONDS - moment.microsecond / 1e6 + _MARGIN_SECONDS


@dataclass(frozen=True)
class Watched:
    """The topics and clocks that a ticker looks at, on its own thread; the first two may raise TransientError.

    `true_after` gives a moment, and the ends of what must be processed before its tick is true.
    """

    true_after: TrueAfter
    events_partitions: Callable[[], list[int]]
    is_stopping: Callable[[], bool]


class Ticker:
    """Writes the ticks of one source from a thread of its own, until `Watched.is_stopping` says so."""

    def __init__(self, settings: Settings, source: str, watched: Watched) -> None:
        self._events, self._watched = settings.names.events(source), watched
        self._rule, self._lock, self._wake = TickRule(), threading.Lock(), threading.Event()
        self._reading = TickRule()
        self._committed: Position = {}
        self._trouble = ""
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=5.0, config=PROMPT)
        self._thread = threading.Thread(target=self._run, name="ticks", daemon=True)
        self._thread.start()

    def note_committed(self, offsets: Position) -> None:
        """Record that everything before `offsets` has been processed, and its events written."""
        with self._lock:
            self._committed = dict(offsets)
        self._wake.set()

    @property
    def asks(self) -> bool:
        """Return whether a reading of the clock waits for `read`."""
        return self._reading.asks

    def read(self, offsets: Position) -> datetime | None:
        """Return the latest time before which all that was appended lies before `offsets`; None without a newer one.

        Unlike `note_committed`, this writes no tick: between two commits one can be wrong about `offsets`, and what a
        tick makes late is lost.
        """
        with self._lock:
            return self._reading.answer(offsets)

    def _run(self) -> None:
        while not self._watched.is_stopping():
            moment, began = None, time.monotonic()
            try:
                moment = self._ask()
                if self._write() and self._trouble:
                    log.info("ticks written again", topic=self._events, after=self._trouble)
                    self._trouble = ""
            except (ConfigError, TransientError) as error:  # rights may be refused for a while
                if not self._trouble:
                    what = "windows of an idle topic stay open until they are"
                    log.warning("ticks not written, trying on", topic=self._events, means=what, reason=str(error))
                self._trouble = str(error)
            pause = pause_after(moment) - (time.monotonic() - began)
            if self._wake.wait(max(0.0, pause)):  # a batch was committed: what was asked before may be true now
                self._wake.clear()

    def _ask(self) -> datetime | None:
        asked = self._watched.true_after()
        if asked is None:
            return None
        self._rule.ask(*asked)
        with self._lock:
            self._reading.ask(*asked)
        return asked[0]

    def _write(self) -> bool:
        with self._lock:
            committed = dict(self._committed)
        moment = self._rule.answer(committed)
        if moment is None:
            return False
        for partition in self._watched.events_partitions():
            self._writer.write(self._events, tick_value(moment), partition=partition)
        self._writer.flush()
        return True
