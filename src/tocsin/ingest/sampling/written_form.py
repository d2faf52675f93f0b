"""Write the form of times that were recognised, as a source declares it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tocsin.declare.model.source import SYSLOG

_PADDED = ("yyyy-M-d", "yyyy/M/d", "yyyy.M.d", "d/MMM/yyyy", "M-d", "yyyy-MMM-d")
_ISO = ("yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd HH:mm:ss")

Fields = dict[str, str | None]


class UnclearTime(ValueError):
    """The lines hold times, but what they mean cannot be told; `start` is where the first stands."""

    def __init__(self, what: str, start: int = 0) -> None:
        super().__init__(what)
        self.start = start


def write_form(date: str, clock: str, shape: tuple[str, ...], fields: Sequence[Fields]) -> str:
    """Write the form of times of one `shape`, of which `date` and `clock` are known but for widths.

    UnclearTime if what stands behind the seconds may be a fraction or milliseconds.
    """
    weekday, between, half, zone, tail = shape
    days = re.sub(r"(?<=MMM )d(?!d)", "[ ]d", _widths(date, fields, padded=date in _PADDED))
    is_bare = any(len(str(line.get(letter) or "00")) == 1 for line in fields for letter in "ms")
    hours = clock if is_bare else _widths(clock, fields, padded=not half)
    if half:
        hours = hours.replace("H", "h")
    joined = f"'{between}'" if between.isalpha() else between
    fraction = _fraction(fields)
    form = f"{weekday}{days}{joined}{hours}{fraction}{half}{zone}{tail}"
    if form == "MMM [ ]d HH:mm:ss":
        return SYSLOG
    is_iso = f"{days}{joined}{hours}" in _ISO and zone in ("", "XXX", "Z") and not weekday + half + tail
    return "iso8601" if is_iso and fraction.strip("[")[:1] in ("", ".") else form


def _widths(form: str, fields: Sequence[Fields], *, padded: bool) -> str:
    """Double the letters of numbers that have two digits in all lines, where that is the rule or a zero says so."""

    def widen(found: re.Match[str]) -> str:
        letter = found[0]
        values = [str(line[letter]).strip() for line in fields]
        is_wide = all(len(value) == 2 for value in values)
        zero = any(value[0] == "0" and len(value) == 2 for value in values)
        if "MMM d" in form and letter == "d":
            return letter  # of one or two digits, or a blank before one
        return letter * 2 if is_wide and (padded or zero or letter in "ms") else letter

    return re.sub(r"(?<![A-Za-z])[MdHms](?![A-Za-z])", widen, form)


def _fraction(fields: Sequence[Fields]) -> str:
    digits = [str(line["digits"]) for line in fields if line.get("digits")]
    marks = {line["mark"] for line in fields if line.get("mark")}
    if not digits:
        return ""
    if len(marks) > 1:
        raise UnclearTime("the fractions of a second stand behind different marks")
    mark, longest = str(marks.pop()), max(map(len, digits))
    is_always = len(digits) == len(fields)
    if mark == ":":
        if longest > 3 or not is_always:
            raise UnclearTime(f"what '{mark}{digits[0]}' behind the seconds counts is not known")
        return ":SSS"
    lengths = set(map(len, digits))
    if len(lengths) > 1 and longest <= 3:
        trimmed = not any(text.endswith("0") for text in digits)
        leading = any(text[0] == "0" and len(text) > 1 for text in digits)
        if not (leading and trimmed) or (not is_always and not leading):
            raise UnclearTime(f"'{mark}{min(digits, key=len)}' behind the seconds may be a fraction or milliseconds")
    letters = "S" * longest
    return f"{mark}{letters}" if is_always else f"[{mark}{letters}]"
