"""Values that take long to get: got in a thread, and only while somebody asks for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Value = TypeVar("_Value")

_STALE = 2  # a value that is so many periods old was asked for by nobody meanwhile


@dataclass(frozen=True)
class Fetched(Generic[_Value]):
    """The known state of a value: as it was got last, `at` epoch seconds; both None before the first time.

    `error` says why it could not be got the last time; empty when it could.
    """

    value: _Value | None = None
    at: float | None = None
    error: str = ""


class BackgroundValue(Generic[_Value]):
    """One value: a caller gets the last one at once; an old one is refreshed in the background."""

    def __init__(self, get: Callable[[], _Value], seconds: float) -> None:
        """A value that `get` gets; it is asked at most every `seconds`, and may raise anything."""
        self._get, self._seconds = get, seconds
        self._lock = threading.Lock()
        self._last: Fetched[_Value] = Fetched()
        self._tried_at = float("-inf")
        self._thread: threading.Thread | None = None

    def known(self, patience: float = 0.0) -> Fetched[_Value]:
        """Return what is known; if that is nothing, or old, wait up to `patience` seconds for the attempt under way."""
        got = self._request()
        if got.at is None or time.time() - got.at > _STALE * self._seconds:
            self.wait(patience)
            with self._lock:
                got = self._last
        return got

    def _request(self) -> Fetched[_Value]:
        with self._lock:
            idle = self._thread is None or not self._thread.is_alive()
            if idle and time.monotonic() - self._tried_at >= self._seconds:
                self._tried_at = time.monotonic()
                self._thread = threading.Thread(target=self._refresh, name="tocsin-refresh", daemon=True)
                self._thread.start()
            return self._last

    def wait(self, seconds: float) -> None:
        """Wait for the attempt under way, if there is one, at most `seconds`."""
        if (thread := self._thread) is not None:
            thread.join(seconds)

    def _refresh(self) -> None:
        try:
            got = Fetched(self._get(), time.time())
        except Exception as error:  # whatever it is, it is shown beside what was known before
            with self._lock:
                got = Fetched(self._last.value, self._last.at, str(error) or type(error).__name__)
        with self._lock:
            self._last = got
            self._tried_at = time.monotonic()
