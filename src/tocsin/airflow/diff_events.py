"""Decide how often the same difference is sent."""

from __future__ import annotations

_SHORTEST = 3.0
_FIRST = 6.0
_LONGEST = 60.0


class Sender:
    """Decides whether drift is sent now: at once when it is new, but at most every 3 seconds.

    What stays as it is is sent again after 6 seconds, then after twice the time each, up to a minute.
    """

    def __init__(self) -> None:
        self._sent: frozenset[str] = frozenset()
        self._at = float("-inf")
        self._delay = _FIRST

    def sends(self, found: frozenset[str], now: float) -> bool:
        """Tell whether to send `found` at `now` (seconds of any clock that only goes forward)."""
        if not found:
            self._sent, self._delay = found, _FIRST
            return False
        same = found == self._sent
        if now - self._at < (self._delay if same else _SHORTEST):
            return False
        self._delay = min(_LONGEST, 2 * self._delay) if same else _FIRST
        self._sent, self._at = found, now
        return True
