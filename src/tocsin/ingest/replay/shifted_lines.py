"""Raw lines of the past as if they happened now: each waits until it is due, and gets the time at which it is sent."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import TypeVar
from zoneinfo import ZoneInfo

from tocsin.declare.model.durations import EPOCH, MICROSECOND
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import APPENDED, EPOCHS, Format, Source
from tocsin.ingest.line_forms import LOGFMT_PAIR, SYSLOG_COLUMNS, WHOLE_QUOTED, syslog_header
from tocsin.ingest.producer import column_groups
from tocsin.ingest.replay.pace import PacedClock, ReplayPace
from tocsin.ingest.time_patterns import LONG_MONTHS, LONG_WEEKDAYS, MONTHS, WEEKDAYS, time_regex

_Beside = TypeVar("_Beside")


@dataclass
class LeftOutLines:
    """Lines that are left out for one reason: how many, and the number of the first, from 1 on."""

    count: int
    first: int


class ShiftedLines:
    """Shifts lines of one source; `left_out` are those whose time cannot be rewritten, by the reason.

    The first event happens when it is sent, and each later one so long after it as it did, divided by the speed. So no
    event is ahead of its append time, which would be refused, nor far behind it, which would be late.
    """

    def __init__(self, source: Source, speed: float, stop: threading.Event) -> None:
        """Prepare to shift lines of `source`, until `stop` is set; ConfigError if its times cannot be rewritten."""
        self.left_out: dict[str, LeftOutLines] = {}
        self._times, self._speed, self._stop = LineTimes(source), speed, stop
        self._ignored = [re.compile(pattern.encode()) for pattern in source.ignore if _is_python(pattern)]

    def shift(self, lines: Iterable[tuple[bytes, _Beside]]) -> Iterator[tuple[bytes, _Beside]]:
        """Yield the `lines`, with what is beside them, each when it is due; what the source ignores stays as it is."""
        clock: PacedClock | None = None
        first = began = datetime.now(UTC)
        for number, (line, beside) in enumerate(lines, start=1):
            if any(pattern.search(line) for pattern in self._ignored):
                yield line, beside
                continue
            try:
                found = self._times.find(line)
            except ValueError as error:
                self.left_out.setdefault(str(error), LeftOutLines(0, number)).count += 1
                continue
            if found.moment > datetime.now(UTC):  # whoever waited for it would send no other line
                self.left_out.setdefault("its time is still to come", LeftOutLines(0, number)).count += 1
                continue
            if clock is None:
                clock = PacedClock(ReplayPace(speed=self._speed), self._stop, lambda: None)
                first, began = found.moment, datetime.now(UTC)
            if not clock.wait_for(found.moment):
                return
            yield found.with_time(began + (found.moment - first) / self._speed), beside


def _is_python(pattern: str) -> bool:
    try:
        re.compile(pattern.encode())
    except re.error:
        return False
    return True


Finder = Callable[[bytes], tuple[int, int] | None]
"""Finds where in a line the text of a column begins and ends."""

_BLANK = b" \t\r\n"
_MOST_AHEAD = timedelta(days=1)
_UNITS = dict(zip(EPOCHS, (1, 1_000, 1_000_000, 1_000_000_000), strict=True))


@dataclass(frozen=True)
class FoundTime:
    """The event time of a line, and `with_time`, which makes the line with another time."""

    moment: datetime
    with_time: Callable[[datetime], bytes]


class LineTimes:
    """Finds the event times of lines of one source."""

    def __init__(self, source: Source) -> None:
        """Raises ConfigError if lines of `source` hold no time, or hold it in a form that cannot be written."""
        where = f"sources/{source.name}.toml"
        if source.event_time == APPENDED or source.is_derived:
            raise ConfigError.one(where, "its lines hold no time that could be rewritten", key="event_time")
        self._column, self._zone = source.event_time, ZoneInfo(source.time_zone)
        self._unit = _UNITS.get(source.event_time_format)
        try:
            self._form = re.compile(r"(-?\d+)(?:\.(\d+))?" if self._unit else time_regex(source.event_time_format))
        except (ValueError, re.error) as error:
            raise ConfigError.one(where, f"cannot be written: {error}", key="event_time_format") from None
        self._find = _finder(source, where)
        self._lacks = f"no {self._column} is found in it"
        if Format.REGEX in source.formats:
            self._lacks = f"no pattern of the source matches it with a value for {self._column}"

    def find(self, line: bytes) -> FoundTime:
        """Find the time of `line`; ValueError if there is none, or it is not written as the source says."""
        place = self._find(line)
        if place is None:
            raise ValueError(self._lacks)
        start, end = place
        match = self._form.fullmatch(line[start:end].decode("utf-8", "replace"))
        try:
            if match is None:
                raise ValueError
            moment = _of_number(match, self._unit) if self._unit else moment_of(match, self._zone)
        except (ValueError, OverflowError):
            raise ValueError(f"its {self._column} is no time in the form of the source") from None

        def with_time(new: datetime) -> bytes:
            text = _number(match, self._unit, new) if self._unit else _written(match, self._zone, new)
            return line[:start] + text.encode() + line[end:]

        return FoundTime(moment, with_time)


# --- where the time stands --------------------------------------------------------------------------------------------


def _finder(source: Source, where: str) -> Finder:
    if source.formats == (Format.JSON,):
        return lambda line: _in_json(line, source)
    field = source.field_of(source.event_time)
    plain = _in_logfmt(field) if Format.LOGFMT in source.formats else _in_groups(source, where)
    if Format.JSON not in source.formats:
        return plain
    return lambda line: _in_json(line, source) if line.lstrip(_BLANK)[:1] == b"{" else plain(line)


def _in_json(line: bytes, source: Source) -> tuple[int, int] | None:
    """Find the value of the event time of the object in `line`, without its quotation marks."""
    try:
        text = line.decode("utf-8")
        span = _span(text, text.index("{"), source.field_of(source.event_time), source)
    except (ValueError, IndexError, RecursionError):
        return None
    if span is None:
        return None
    quotes = text[span[0]] == '"'
    return len(text[: span[0] + quotes].encode()), len(text[: span[1] - quotes].encode())


def _span(text: str, at: int, path: str, source: Source) -> tuple[int, int] | None:
    """Find the value at `path` of the object that begins at `at`, as `tocsin.ingest.line_forms` does."""
    found, names = _named(text, at, path, source), path.split(".")
    for count in range(1, len(names) if found is None and all(names) else 0):
        inner = _span(text, at, ".".join(names[:count]), source)
        if found is None and inner is not None and text[inner[0]] == "{":
            found = _named(text, inner[0], ".".join(names[count:]), source)
    return found


def _named(text: str, at: int, name: str, source: Source) -> tuple[int, int] | None:
    spans: dict[str, tuple[int, int]] = {}
    for field, span in _spans(text, at):
        spans.setdefault(field, span)
    alike = () if source.match_case else (span for field, span in spans.items() if field.lower() == name.lower())
    return spans.get(name) or next(iter(alike), None)


def _spans(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the fields of the object that begins at `at`, as far as they are whole."""
    decode = json.JSONDecoder().raw_decode
    with contextlib.suppress(ValueError, IndexError):
        at = _behind_blanks(text, at + 1)
        while text[at] == '"':
            name, at = decode(text, at)
            start = _behind_blanks(text, text.index(":", at) + 1)
            _, at = decode(text, start)
            yield name, (start, at)
            at = _behind_blanks(text, text.index(",", at) + 1)


def _behind_blanks(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _in_logfmt(column: str) -> Finder:
    pair = re.compile(LOGFMT_PAIR.encode())

    def find(line: bytes) -> tuple[int, int] | None:
        header = syslog_header(line)
        if column in SYSLOG_COLUMNS:
            return None if header is None else header.span(SYSLOG_COLUMNS.index(column) + 1)
        begin = header.end() if header else 0
        found = next((match for match in pair.finditer(line[begin:]) if match[1] == column.encode()), None)
        if found is None:
            return None
        quotes = re.fullmatch(WHOLE_QUOTED.encode(), found[2]) is not None
        return begin + found.start(2) + quotes, begin + found.end(2) - quotes

    return find


def _in_groups(source: Source, where: str) -> Finder:
    groups = column_groups(source, source.event_time)
    if Format.REGEX in source.formats and len(groups) < len(source.patterns):
        what = "is one that only Java can read, so the time of a line cannot be found"
        raise ConfigError.one(where, what, key="pattern")

    def find(line: bytes) -> tuple[int, int] | None:
        begin, text = len(line) - len(line.lstrip(_BLANK)), line.strip(_BLANK)
        found = next(((match, group) for form, group in groups if (match := form.search(text))), None)
        if found is None or not found[1] or (value := found[0][found[1]]) is None:
            return None
        start = begin + found[0].start(found[1]) + len(value) - len(value.lstrip(_BLANK))
        return start, start + len(value.strip(_BLANK))

    return find


# --- how it is written ------------------------------------------------------------------------------------------------


def moment_of(match: re.Match[str], zone: tzinfo) -> datetime:
    """Read the time whose fields `match` holds (`time_regex`), in `zone` if it names none; ValueError if it is none."""
    fields = match.groupdict()
    day = int(fields.get("day") or fields.get("blank_day") or 1)
    minute, second = (int(fields.get(name) or 0) for name in ("minute", "second"))
    micros = int((fields.get("fraction") or "0").ljust(6, "0")[:6]) + 1_000 * int(fields.get("count") or 0)
    month, hour = _month(fields), _hour(fields)
    zone = _zone_of(fields.get("zone")) or zone
    now = datetime.now(UTC)
    # Without a year it is the latest that is not a day ahead, as for the ingest.
    years: tuple[int, ...] = (now.year + 1, now.year, now.year - 1)
    if year := fields.get("year") or fields.get("short_year"):
        years = (int(year) + (2_000 if len(year) == 2 else 0),)
    for year in years:
        try:
            moment = datetime(year, month, day, hour, minute, second, micros, zone)
        except ValueError:  # the 29th of February
            continue
        if len(years) == 1 or moment <= now + _MOST_AHEAD:
            return moment
    raise ValueError


def _month(fields: dict[str, str | None]) -> int:
    name = fields.get("month_name") or fields.get("long_month")
    return MONTHS.index(name[:3].title()) + 1 if name else int(fields.get("month") or 1)


def _hour(fields: dict[str, str | None]) -> int:
    half = fields.get("half")
    if not half:
        return int(fields.get("hour") or 0)
    hour = int(fields.get("hour_of_12") or 0)
    if not 1 <= hour <= 12:
        raise ValueError
    return hour % 12 + (12 if half.lower() == "pm" else 0)


def _zone_of(text: str | None) -> tzinfo | None:
    if not text or text == "Z":
        return UTC if text else None
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def _written(match: re.Match[str], zone: tzinfo, new: datetime) -> str:
    fields = match.groupdict()
    local = new.astimezone(_zone_of(fields.get("zone")) or zone)
    text, rest = "", 0
    for name in sorted((name for name, value in fields.items() if value), key=match.start):
        text += match.string[rest : match.start(name)] + _field(name, fields[name], local)
        rest = match.end(name)
    return text + match.string[rest:]


def _field(name: str, before: str, local: datetime) -> str:
    """Write a field of `local` as wide as it was `before`."""
    if name == "zone":
        return before
    if name in _NAMES:
        names, field = _NAMES[name]
        return names[field(local)]
    if name == "fraction":
        return f"{local.microsecond:06d}".ljust(len(before), "0")[: len(before)]
    if name == "blank_day":
        return str(local.day).rjust(len(before))
    number = _NUMBERS[name](local) if name in _NUMBERS else getattr(local, name)
    return str(number).rjust(len(before), "0")


_NAMES: dict[str, tuple[tuple[str, ...], Callable[[datetime], int]]] = {
    "month_name": (MONTHS, lambda local: local.month - 1),
    "long_month": (LONG_MONTHS, lambda local: local.month - 1),
    "weekday": (WEEKDAYS, lambda local: local.weekday()),
    "long_weekday": (LONG_WEEKDAYS, lambda local: local.weekday()),
    "half": (("AM", "PM"), lambda local: local.hour // 12),
}
_NUMBERS: dict[str, Callable[[datetime], int]] = {
    "short_year": lambda local: local.year % 100,
    "hour_of_12": lambda local: local.hour % 12 or 12,
    "count": lambda local: local.microsecond // 1_000,
}


def _of_number(match: re.Match[str], unit: int) -> datetime:
    return EPOCH + int(Decimal(match[0]) * 1_000_000 / unit) * MICROSECOND


def _number(match: re.Match[str], unit: int, new: datetime) -> str:
    places = len(match[2] or "")
    whole, part = divmod((new - EPOCH) // MICROSECOND * unit * 10**places // 1_000_000, 10**places)
    return f"{whole}.{part:0{places}d}" if places else str(whole)
