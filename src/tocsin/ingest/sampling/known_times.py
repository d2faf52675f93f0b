"""Find the time in lines of a sample: one in a form that logs commonly have, with all its parts, or none.

What stands beside a time and looks like a part of it is never passed over: then the lines are refused, with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tocsin.declare.model.source import EPOCHS, SYSLOG
from tocsin.ingest.time_patterns import LONG_MONTHS, LONG_WEEKDAYS, MONTHS, WEEKDAYS, time_regex

MOST = 0.9
"""A time in so many of the lines is the time of all; the others go to quarantine."""

EPOCH_DIGITS = dict(zip((10, 13, 16, 19), EPOCHS, strict=True))
_LOOKED_AT = 20
_DATES = (
    *("yyyy-MM-dd", "yyyy/MM/dd", "yyyy.MM.dd", "yyyyMMdd", "dd/MMM/yyyy", "dd-MMM-yyyy", "d MMM yyyy"),
    *("MMM [ ]d yyyy", "MMM [ ]d, yyyy", "MMM [ ]d", "dd.MM.yyyy", "M/d/yyyy", "d/M/yyyy"),
)
_ISO = ("yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd HH:mm:ss")
_ZONE_NAMES = (
    "EST EDT CST CDT MST MDT PST PDT AKST AKDT HST AST ADT NST NDT BRT ART CET CEST EET EEST WET WEST BST IST"
    " MSK MSD SAST CAT EAT WAT PKT NPT ICT WIB SGT HKT JST KST AWST ACST ACDT AEST AEDT NZST NZDT SST"
).replace(" ", "|")
_DAYS = "|".join((*LONG_WEEKDAYS, *WEEKDAYS))
_NAMES = f"{_DAYS}|{'|'.join((*LONG_MONTHS, *MONTHS))}"
_START = rf"(?<![\w:])(?<!\d[.,/-])(?<!\w[+-])(?:(?P<weekday>{'|'.join(WEEKDAYS)})(?P<behind>,?[ ]))?"
_REST = (
    r"(?P<between>[ T_:-]|,[ ])(?P<clock>\d{1,2}:\d\d(?P<seconds>:\d\d)?|\d{6})"
    r"(?:(?P<mark>[.,])(?P<digits>\d{1,9}))?(?P<half>[ ]?[AaPp][Mm](?![A-Za-z]))?"
    r"(?P<zone>[ ]?[+-]\d\d(?::?[0-5]\d)?(?!\d)|[ ]?(?:UTC|GMT|Z)(?![\w+-]))?"
)
_END = r"(?![\w:]|[.,:/-]\d)"
_EPOCH = (
    r"\W{0,3}(?:\S{1,40}[ ])?\[?"
    r"(?P<number>(?<![\w.,:/@#=+-])(?:\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19})(?![\w:,/.-]))"
)
_ALSO_TIME = re.compile(
    r"(?<![\w.:/-])(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/]\d{1,2}[-/]\d{4}|\d{1,2}:\d\d:\d\d|\d{4}-?W\d\d(?:-?\d)?"
    rf"|(?:{'|'.join(MONTHS)})[ ]+\d{{1,2}})(?![\w:])"
)
_PART_BEFORE = re.compile(rf"(?:(?<!\w)(?:{_NAMES}|(?:19|20)\d\d)[.,]?[ ]?|[\d][.,:/T_-])$")
_PART_AFTER = re.compile(
    r"^(?:[ ,]{0,2}(?:[ap]\.m\.|[AaPp][Mm](?![a-z])|[+-]\d\d(?::?\d\d)?(?![\w.:-]))"
    rf"|[ ]?[(\[]?(?:{_ZONE_NAMES}|UTC|GMT|[A-Z][a-z]+/[A-Z][a-z_]+)(?!\w)|[ ](?:{_DAYS}|(?:19|20)\d\d)(?!\w))"
)


class UnclearTime(ValueError):
    """The lines hold times, but what they mean cannot be told; `start` is where the first stands."""

    def __init__(self, what: str, start: int = 0) -> None:
        super().__init__(what)
        self.start = start


@dataclass(frozen=True)
class KnownTime:
    """The time that nearly all lines hold, in the `form` that a source declares.

    Attributes:
        spans: where the time of each line stands; None for a line without it.
        has_zone: the times name their zone or offset.
    """

    form: str
    spans: list[tuple[int, int] | None]
    has_zone: bool


_Matches = list[re.Match[str] | None]


def _regex(date: str) -> re.Pattern[str]:
    tail = "" if "y" in date else r"(?P<tail>[ ](?:19|20)\d\d)?"
    return re.compile(f"{_START}(?P<date>{time_regex(date)}){_REST}{tail}{_END}")


_REGEXES = {date: _regex(date) for date in _DATES}


def find_time(lines: Sequence[str]) -> KnownTime | None:
    """Find the time that stands first in nearly all `lines`; None if there is none.

    UnclearTime if there is one that is not known whole, or can be read in two ways.
    """
    looked_at = lines[:: max(1, len(lines) // _LOOKED_AT)]
    likely = [date for date in _DATES if 2 * sum(map(bool, map(_REGEXES[date].search, looked_at))) >= len(looked_at)]
    found = {date: [_REGEXES[date].search(line) for line in lines] for date in likely}
    known = {date: times for date, times in found.items() if sum(map(bool, times)) >= MOST * len(lines)}
    epoch = _epoch(lines)
    if not known:
        return epoch
    best = min(known.values(), key=_rank)
    pairs = [(span, time) for span, time in zip(epoch.spans, best, strict=True) if span and time] if epoch else []
    if pairs and all(span[0] < time.start() for span, time in pairs):
        return epoch
    start = next(time for time in best if time).start()
    try:
        return _settled({date: times for date, times in known.items() if _spans(times) == _spans(best)}, lines)
    except UnclearTime as error:
        raise UnclearTime(str(error), start) from None


def _rank(times: _Matches) -> tuple[float, float]:
    """Order by where times begin, the longer first."""
    there = [time for time in times if time]
    starts = sorted(time.start() for time in there)
    return starts[len(there) // 2], -sum(len(time[0]) for time in there) / len(there)


def _spans(times: _Matches) -> list[tuple[int, int] | None]:
    return [time.span() if time else None for time in times]


def _settled(rivals: dict[str, _Matches], lines: Sequence[str]) -> KnownTime:
    """Make the form of times that stand at the same places, if it is one and clear."""
    example = next(time[0] for times in rivals.values() for time in times if time)
    valid = {date: times for date, times in rivals.items() if all(_is_date(time) for time in times if time)}
    if not valid:
        raise UnclearTime(f"'{example}' is no date of the calendar")
    if len(valid) > 1:
        raise UnclearTime(f"'{example}' can be read as {' or '.join(valid)}")
    ((date, times),) = valid.items()
    shapes = Counter(_shape(time) for time in times if time)
    shape, count = shapes.most_common(1)[0]
    if count < MOST * len(lines):
        examples = [next(time[0] for time in times if time and _shape(time) == known) for known in list(shapes)[:2]]
        raise UnclearTime(f"the times are written in {len(shapes)} forms, as '{examples[0]}' and '{examples[1]}'")
    kept = [time if time and _shape(time) == shape else None for time in times]
    for time, line in zip(kept, lines, strict=True):
        if time:
            _check_beside(time, line)
    return KnownTime(_form(date, shape, [time for time in kept if time]), _spans(kept), bool(shape[4]))


def _shape(time: re.Match[str]) -> tuple[str, ...]:
    clock = "HHmmss" if ":" not in time["clock"] else "HH:mm:ss" if time["seconds"] else "HH:mm"
    zone = time["zone"] or ""
    bare = zone.strip()
    if bare[:1] in ("+", "-"):
        written = "XXX" if ":" in bare else "Z" if len(bare) > 3 else "X"
    else:
        written = "XXX" if bare == "Z" else f"'{bare}'" if bare else ""
    weekday = f"EEE{time['behind']}" if time["weekday"] else ""
    tail = " yyyy" if time.groupdict().get("tail") else ""
    half = re.sub("[A-Za-z]+", "a", time["half"] or "")
    return weekday, time["between"], clock, half, " " * (len(zone) - len(bare)) + written, tail


def _form(date: str, shape: tuple[str, ...], times: Sequence[re.Match[str]]) -> str:
    weekday, between, clock, half, zone, tail = shape
    is_bare = any(len(time["clock"].partition(":")[0]) == 1 for time in times)
    if half or is_bare:
        clock = clock.replace("HH", "h" if half else "H")
    days = date + (f"'{between}'" if between.isalpha() else between) + clock
    is_iso = days in _ISO and zone in ("", "XXX", "Z") and not weekday + half + tail
    marks, lengths = {time["mark"] for time in times if time["mark"]}, {len(time["digits"] or "") for time in times}
    if len(marks) > 1 or (len(lengths - {0}) > 1 and (not is_iso or max(lengths) <= 3)):
        raise UnclearTime("what stands behind the seconds may be a fraction or milliseconds")
    if is_iso and marks <= {"."}:
        return "iso8601"
    fraction = "".join(marks) + "S" * max(lengths)
    fraction = f"[{fraction}]" if fraction and 0 in lengths else fraction
    form = f"{weekday}{days}{fraction}{half}{zone}{tail}"
    return SYSLOG if form == "MMM [ ]d HH:mm:ss" else form


def _is_date(time: re.Match[str]) -> bool:
    fields = {name: value for name, value in time.groupdict().items() if value}
    name = fields.get("month_name", "").title()
    month = MONTHS.index(name) + 1 if name else int(fields["month"])
    year = fields.get("year") or fields.get("tail") or "2000"
    try:
        moment = datetime(int(year), month, int(fields.get("blank_day") or fields["day"]), tzinfo=UTC)
    except ValueError:
        return False
    return moment < datetime.now(UTC) + timedelta(days=366)


def _check_beside(time: re.Match[str], line: str) -> None:
    """Refuse a line that holds a part of the time beside it, or another time before it."""
    before, after = line[: time.start()], line[time.end() :]
    if found := _ALSO_TIME.search(before):
        raise UnclearTime(f"'{found[0]}' stands before the time '{time[0]}', and which is of the event is not known")
    if time["zone"]:  # behind an offset mails have the name of the zone
        after = re.sub(r"^[ ]\([A-Z]{2,5}\)", "", after)
    if found := _PART_BEFORE.search(before) or _PART_AFTER.search(after):
        raise UnclearTime(f"'{found[0].strip()}' beside '{time[0]}' looks like a part of that time, which is not known")


def _epoch(lines: Sequence[str]) -> KnownTime | None:
    """Find a number of seconds or parts of them since 1970 that stands first in the lines, or behind one word."""
    spans = [match.span("number") if (match := re.match(_EPOCH, line)) else None for line in lines]
    there = [line[span[0] : span[1]] for line, span in zip(lines, spans, strict=True) if span]
    digits = {len(text.partition(".")[0]) for text in there}
    if len(there) < MOST * len(lines) or len(digits) != 1:
        return None
    length = digits.pop()
    seconds = [float(text) / 10 ** (length - 10) for text in there]
    if not all(946_684_800 <= number <= datetime.now(UTC).timestamp() + 86_400 for number in seconds):
        return None
    return KnownTime(EPOCH_DIGITS[length], spans, has_zone=True)
