"""The contract of a record of an events topic: an event, or a tick."""

from __future__ import annotations

from datetime import datetime

TICK_START = '{"tick":true'
"""A record that begins so is a tick: it only moves event time on."""


def tick_value(moment: datetime) -> bytes:
    """The value of a tick record; its key is null."""
    return f'{TICK_START},"event_time":"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"}}'.encode()


def is_tick(value: bytes) -> bool:
    """Return whether a record is a tick, not an event."""
    return value.startswith(TICK_START.encode())
