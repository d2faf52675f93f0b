"""Ids that are the same wherever and whenever they are made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime


def entity_hash(canonical: str) -> str:
    """Hash of a canonical entity, for indexes: entities come from logs and may be longer than an index entry."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def message_id(domain: str, parts: Iterable[str]) -> str:
    """The Message-ID, with its angle brackets, of what `parts` identify."""
    return f"<{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:32]}@{domain}>"


def alert_parts(detector: str, canonical: str, period_start: datetime) -> list[str]:
    """What identifies an alert beyond one database."""
    return [detector, entity_hash(canonical), period_start.isoformat()]
