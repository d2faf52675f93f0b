"""Text from outside, made safe to show: it moves no cursor, hides nothing, and reads in the order it was written.

Standard library only.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(value: object) -> str:
    r"""Write `value` as text in which every control or invisible character is an escape such as \x1b or \u202e."""
    return "".join(_shown(character) for character in str(value))


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
