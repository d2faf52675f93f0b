"""Report how far long work is, to whoever listens: a verb shows it, the jobs of a schedule let nobody listen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], object]
"""Is called with what is being done, how much of it is done, and how much there is (0 if that is not known)."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener of progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear all that is reported in the block."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def is_heard() -> bool:
    """Return whether somebody listens."""
    return _LISTENER.get() is not None


def report_progress(what: str, done: int, total: int = 0) -> None:
    """Report that `done` of `total` are done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, done, total)
