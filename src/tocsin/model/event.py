"""The contract of a record of an events topic: an event, or a tick."""

from __future__ import annotations

TICK_START = '{"tick":true'
"""A record that begins so is a tick: it only moves event time on."""


def is_tick(value: bytes) -> bool:
    """Tell a tick from an event."""
    return value.startswith(TICK_START.encode())
