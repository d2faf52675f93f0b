"""The parts of a time and of what may stand beside it, as lines of logs write them."""

from __future__ import annotations

import re

from tocsin.declare.model.source import EPOCHS
from tocsin.ingest.time_patterns import LONG_MONTHS, LONG_WEEKDAYS, MONTHS, WEEKDAYS

_ABBREVIATIONS = (
    "UTC GMT EST EDT CST CDT MST MDT PST PDT AKST AKDT HST AST ADT NST NDT BRT ART CET CEST EET EEST WET WEST BST IST"
    " MSK MSD SAST CAT EAT WAT PKT NPT ICT WIB SGT HKT JST KST AWST ACST ACDT AEST AEDT NZST NZDT SST"
    " MEZ MESZ ET CT MT PT"
)
_MONTH, _LONG_MONTH = "|".join(MONTHS), "|".join(LONG_MONTHS)
_LONG_DAY, _DAY = "|".join(LONG_WEEKDAYS), "|".join(WEEKDAYS)
_PIECES = {
    "yyyy": r"(?:19|20)\d\d", "MMMM": rf"(?i:{_LONG_MONTH})", "MMM": rf"(?i:{_MONTH})",
    "MM": r"[01]\d", "dd": r"[0-3]\d",
    "yy": r"\d\d", "M": r"[01]?\d", "d": r"[0-3]?\d", "HH": r"[0-2]\d", "mm": r"[0-5]\d", "ss": r"[0-5]\d",
    "H": r"[0-2]?\d", "m": r"[0-5]?\d", "s": r"[0-5]?\d",
}  # fmt: skip
_DATES = (
    *("yyyy-M-d", "yyyy/M/d", "yyyy.M.d", "yyyyMMdd", "yyyy-MMM-d", "yyyy MMM d", "yyyy/MMM/d"),
    *("d/MMM/yyyy", "d-MMM-yyyy", "d MMM yyyy", "d MMMM yyyy", "d-MMM-yy", "d/MMM/yy", "d MMM yy"),
    *("MMM d, yyyy", "MMMM d, yyyy", "MMM d yyyy", "MMMM d yyyy", "MMM-d-yyyy", "MMM d", "MMM/d"),
    *("d.M.yyyy", "d.M.yy", "yy.M.d", "M/d/yyyy", "d/M/yyyy", "M-d-yyyy", "d-M-yyyy", "yyMMdd", "ddMMyy", "MMddyy"),
    *("yy/M/d", "M/d/yy", "d/M/yy", "yy-M-d", "M-d-yy", "d-M-yy", "M-d", "d-M", "M/d", "d/M"),
    *("M.d", "d.M"),
)
_CLOCKS = ("H:m:s", "HHmmss", "H.m.s", "H-m-s", "H:m")
_BETWEEN = r"(?P<between>[T_:@/-]|,?[ ]+(?:-[ ]+)?)"
_NAMES = _ABBREVIATIONS.replace(" ", "|")
_FRACTION = r"(?:(?P<mark>[.,:])(?P<digits>\d{1,9}))?"
_REST = (
    r"(?P<half>[ ]?[AaPp][Mm](?![A-Za-z]))?"
    r"(?P<zone>[ ]?[+-]\d\d(?::?[0-5]\d)?(?!\d)|[ ]?(?:UTC|GMT|Z)(?![\w+-])"
    rf"|[ ](?:{_NAMES})(?![\w+-]))?"
)
_YEAR_BEHIND = r"(?P<tail>[ ](?:19|20)\d\d)?"
_START = r"(?<![\w:])(?<!\d[.,/-])(?<!\w[+-])"
_END = r"(?!\w|:(?!\s|\Z)|[.,:/-]\d)"
_WEEKDAY = rf"(?:(?P<weekday>(?i:{_LONG_DAY}|{_DAY}))(?P<behind>,?[ ]+))?"
EPOCH = r"(?<![\w.:/@#=+-])(?:\d{10}(?:\.\d{1,9})?|\d{13}(?:\.\d{1,6})?|\d{16}|\d{19})(?![\w:,/-]|\.\d)"
EPOCH_DIGITS = dict(zip((10, 13, 16, 19), EPOCHS, strict=True))
ALSO_TIME = re.compile(
    r"(?<![\w.:/-])(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/]\d{1,2}[-/]\d{4}|\d{1,2}:\d\d:\d\d|\d{4}-?W\d\d(?:-?\d)?"
    r"|\d{4}-\d{3}T[\d:]+"
    rf"|\d{{1,2}}[-/ ](?:{_MONTH})|(?:{_MONTH})[ ]+\d{{1,2}})(?![\w:])"
)
PART_BEFORE = re.compile(
    rf"(?:(?<!\w)(?:{_LONG_DAY}|{_DAY}|{_LONG_MONTH}|{_MONTH}|(?:19|20)\d\d)[.,\])]?[ ]?|[\d][.,:/T_-])$"
)
YEAR_AFTER = re.compile(r"^[\s,/]{0,2}[(\[]?(?:19|20)\d\d(?!\d)")
_REGION = r"(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Etc|Europe|Indian|Pacific|US)/[A-Z][\w+-]+"
PART_AFTER = re.compile(
    r"^(?:[\s,]{0,2}(?:[AaPp]\.\s?[Mm]\.|[AaPp][Mm](?![a-z])|[+-]\d\d(?::?\d\d)?(?![\w.:-]))|['+-]\d|[ ]?\u2212\d"
    rf"|\]?[\s/,;|]?[(\[]?(?:{_NAMES}|{_REGION})(?!\w|-[A-Za-z])|[ ](?:{_DAY})(?!\w))"
)
ZONE = re.compile(rf"(?i:UTC|GMT)?[+-]\d{{1,2}}(?::?\d\d)?|Z|{_NAMES}|{_REGION}(?:/\w+)?")
"""The whole of a zone in a field of its own: an offset or a name; `NUMBERED_ZONE` may count hours to seconds, too."""
NUMBERED_ZONE = re.compile(rf"-?\d{{1,5}}(?:\.\d+)?|{ZONE.pattern}")
NAMED_IN = re.compile(rf"[^A-Za-z]((?i:UTC|GMT)[+-]\d+|{_NAMES}|{_REGION})\W?$")
UTC_ZONE = re.compile(r"(?i:Z|(?:UTC|GMT)?[+-]?0*(?::?00)?|(?:Etc/)?(?:UTC|GMT|Zulu))")
COMMENT = re.compile(r"^[ ]\([A-Z]{2,5}\)")
"""A zone's name behind an offset, as mails have it."""


def time_of(date: str, clock: str) -> re.Pattern[str]:
    """Make the expression of a date with a weekday, a time of day and all that may follow it."""
    between = r"(?P<between>[ T_-])" if date.isalpha() or clock == "HHmmss" else _BETWEEN
    rest = (_FRACTION if "s" in clock else "") + _REST + ("" if "y" in date else _YEAR_BEHIND)
    return re.compile(f"{_START}{_WEEKDAY}{_fields(date)}{between}{_fields(clock)}{rest}{_END}")


def _fields(form: str) -> str:
    pieces = _PIECES | ({"d": r"[ ]?[0-3]?\d"} if "MMM d" in form or "MMMM d" in form else {})
    tokens = (token[0] for token in re.finditer(r"([A-Za-z])\1*|[^A-Za-z]", form))
    return "".join(f"(?P<{token}>{pieces[token]})" if token in pieces else re.escape(token) for token in tokens)


REGEXES = {(date, clock): time_of(date, clock) for date in _DATES for clock in _CLOCKS}
