r"""The greatest sizes, in bytes: of records on each topic, and of the parts of them that senders decide about.

All follow from RAW_BYTES. JSON may write one byte as six (`\u0001`), base64 three as four. `printable` makes what
senders decide about safe to show. Standard library only.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping

RAW_BYTES = 2 * 1_048_576
"""Longest raw record, with key and headers: a line of 1 MB comes in, to be quarantined; Kafka refuses a longer one."""

VALUE_BYTES = RAW_BYTES // 2

EVENT_BYTES = 8 * VALUE_BYTES
"""Longest event: its value as JSON (six times), its key column again as the key, and as much for the envelope."""

KEPT_BYTES = RAW_BYTES // 8
"""Most bytes of a record's payload that its quarantine record keeps."""

KEPT_KEY_BYTES = RAW_BYTES // 32
"""Most bytes of a record's key that its quarantine record keeps."""

KEPT_HEADERS_BYTES = RAW_BYTES // 16
"""Longest headers, all together as JSON, that a quarantine record keeps; of longer ones it keeps none."""

QUARANTINE_BYTES = RAW_BYTES
"""Longest record in quarantine: as base64 what is kept of payload and key takes a fifth of it."""

FINDING_BYTES = RAW_BYTES // 2
"""Longest finding. What a detector makes is far shorter, since its parts are bounded; a longer one is set aside."""

VIEW_BYTES = RAW_BYTES // 2
"""Longest row of a view, with its key, which is there twice; a longer one is left out."""

RECORD_OVERHEAD = 4_096
"""Bytes that Kafka adds to a value: key, headers and framing, where the key is one of ours."""

TEXT_BYTES = 512
"""Longest text that a finding holds whole: each value of its entity, and of its context."""

SAMPLE_BYTES = 4_096
"""Longest JSON of one sample of the evidence of a finding, and of one column of its context."""

BEGINNING = 100
"""Number of characters that are kept of a text that is longer than TEXT_BYTES."""

DIGEST = 32
"""Number of hex digits of the SHA-256 of the whole text in the mark behind its beginning."""


def shortened(text: str) -> str:
    """`text` if it is not longer than TEXT_BYTES, else its beginning with a mark that tells its length and digest.

    Two different texts stay different. What it returns it returns unchanged; so does Spark (`tocsin.detect.spark`).
    """
    if len(text) <= TEXT_BYTES // 4:  # most are: UTF-8 takes four bytes for a character at most
        return text
    whole = text.encode("utf-8", "surrogatepass")
    if len(whole) <= TEXT_BYTES:
        return text
    return f"{text[:BEGINNING]}…[{len(whole)} bytes, sha256 {hashlib.sha256(whole).hexdigest()[:DIGEST]}]"


_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(value: object) -> str:
    r"""Write `value` as text in which every control or invisible character is an escape such as \x1b or \u202e."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_escape, text))  # 50 times as fast where nothing hides


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def entity_text(entity: Mapping[str, str]) -> str:
    """Name who or what a finding is about: the value of a single column, else `column=value` of each."""
    # A blank would leave a hole in a subject or a table, and PagerDuty refuses an event about it.
    shown = {
        column: value if value.strip() else f"'{value}'" if value else "(empty)" for column, value in entity.items()
    }
    return "".join(shown.values()) if len(shown) == 1 else ", ".join(f"{name}={value}" for name, value in shown.items())


def score_text(score: float, *, at_least: bool, limit: float | None = None) -> str:
    """Write a score, whether it is a lower bound, and in full if it would else read like the `limit` that it passed."""
    text = number(score)
    if limit is not None and score > limit and _read(text) <= _read(number(limit)):
        text = f"{score:,}"
    return f"{'at least ' if at_least else ''}{text}"


def _read(text: str) -> float:
    return float(text.replace(",", ""))


def in_full(figure: float) -> str:
    """Write a score with all its digits, 15 at most: where two that are nearly the same are compared."""
    return f"{figure:,.15g}"


def number(figure: float) -> str:
    """Write a score or count as people do: 120, 1,234,567, 12.35 or 0.183."""
    if figure == int(figure) and abs(figure) < 1e15:
        return f"{figure:,.0f}"
    return f"{figure:,.2f}" if 1 <= abs(figure) < 1e15 else f"{figure:.3g}"
