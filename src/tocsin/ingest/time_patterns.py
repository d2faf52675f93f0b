"""Patterns of times, as a source declares them: Spark's, and what we read beyond them.

A weekday at the beginning is skipped. `SSS` behind a colon counts milliseconds, so that `10:00:00:7` is 7 ms; behind a
point or a comma it is a fraction. Names of zones have the offsets that the source maps them to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tocsin.declare.model.source import SYSLOG

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
LONG_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LONG_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_ZONE = r"(?P<zone>Z|[+-]\d{2}(?::?\d{2})?)"
_FIELDS = {"M": "month", "d": "day", "H": "hour", "h": "hour_of_12", "m": "minute", "s": "second"}
_CLOCK = r"(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})"
_ISO8601 = rf"(?P<year>\d{{4}})-(?P<month>\d{{2}})-(?P<day>\d{{2}})[T ]{_CLOCK}(?:\.(?P<fraction>\d{{1,9}}))?{_ZONE}?"
_MONTH_NAME = rf"(?P<month_name>(?i:{'|'.join(MONTHS)}))"
_NAMED = {"iso8601": _ISO8601, SYSLOG: rf"{_MONTH_NAME} (?P<blank_day>[ ]?\d{{1,2}}) {_CLOCK}"}
_WHOLE = {
    "yyyy": r"(?P<year>\d{4})",
    "yy": r"(?P<short_year>\d{2})",
    "MMM": _MONTH_NAME,
    "MMMM": rf"(?P<long_month>(?i:{'|'.join(LONG_MONTHS)}))",
    "EEE": rf"(?P<weekday>(?i:{'|'.join(WEEKDAYS)}))",
    "EEEE": rf"(?P<long_weekday>(?i:{'|'.join(LONG_WEEKDAYS)}))",
    "a": r"(?P<half>[AaPp][Mm])",
    "Z": _ZONE,
}
_TOKEN = re.compile(r"(\[ \]d)|'((?:[^']|'')*)'|(([A-Za-z])\4*)|([^A-Za-z'])")
_NO_LITERAL = "{}#"
_WEEKDAY_FORM = re.compile(r"E+[^A-Za-z'\[]*")
_COUNT = re.compile(r"(?<=s:)S{1,3}(?!S)")


@dataclass(frozen=True)
class SparkForm:
    """The pattern `form` for Spark, and what is done to a text before.

    Attributes:
        counts: the text counts milliseconds behind the third colon, in one to three digits.
    """

    form: str
    has_weekday: bool
    counts: bool
    has_zone_name: bool


def spark_form(form: str) -> SparkForm:
    """Split a pattern into Spark's own and what we add."""
    plain = _WEEKDAY_FORM.sub("", form, count=1) if form.startswith("E") else form
    counted = _COUNT.sub("SSS", plain)
    has_name = any(match[4] == "z" for match in _TOKEN.finditer(counted))
    written = "".join("xxx" if match[4] == "z" else match[0] for match in _TOKEN.finditer(counted))
    return SparkForm(written if has_name else counted, plain != form, bool(_COUNT.search(plain)), has_name)


def time_regex(form: str) -> str:
    """Make a regular expression of a form of times, its groups name the fields; ValueError if it cannot be written."""
    if form in _NAMED:
        return _NAMED[form]
    parts, before = "", ""
    for token in _TOKEN.finditer(form):
        parts += _part(token, before)
        before = token[0]
    return parts


def _part(token: re.Match[str], before: str) -> str:
    blank_day, quoted, letters, letter, other = token.groups()
    if letters is None:
        return r"(?P<blank_day>[ ]?\d{1,2})" if blank_day else _literal(quoted, other)
    if letters in _WHOLE:
        return _WHOLE[letters]
    if letter in _FIELDS and len(letters) <= 2:
        return rf"(?P<{_FIELDS[letter]}>\d{{{'1,2' if len(letters) == 1 else 2}}})"
    if letter == "S":
        return r"(?P<count>\d{1,3})" if before == ":" else rf"(?P<fraction>\d{{1,{len(letters)}}})"
    if letter in "Xx" and len(letters) <= 3:
        return _ZONE
    raise ValueError(f"holds '{letters}', which can be read and not written; times are not rewritten")


def _literal(quoted: str | None, other: str | None) -> str:
    if other and other in _NO_LITERAL:
        raise ValueError(f"holds '{other}', which can be read and not written; times are not rewritten")
    if other and other in "[]":
        return "(?:" if other == "[" else ")?"
    return re.escape("'" if quoted == "" else (quoted or "").replace("''", "'") or other or "")
