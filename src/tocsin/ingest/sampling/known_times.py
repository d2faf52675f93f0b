"""Recognise the times in lines of a sample: the whole of each, with all its parts, or nothing.

What stands beside a time and looks like a part of it is never passed over: then the lines are refused, with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tocsin.ingest.sampling.time_grammar import (
    ALSO_TIME,
    COMMENT,
    EPOCH,
    EPOCH_DIGITS,
    PART_AFTER,
    PART_BEFORE,
    REGEXES,
    YEAR_AFTER,
)
from tocsin.ingest.sampling.written_form import UnclearTime, write_form
from tocsin.ingest.time_patterns import LONG_WEEKDAYS, MONTHS

MOST = 0.9
"""A time in so many of the lines is the time of all; the others go to quarantine."""

_FEW_DAYS = 3
"""From so many days on their order tells what is the day in a date."""
_LOOKED_AT = 20


@dataclass(frozen=True)
class _Written:
    """One time as a line writes it; `shape` is what the times of all lines have in common."""

    start: int
    end: int
    shape: tuple[str, ...]
    match: re.Match[str]


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


def find_time(lines: Sequence[str]) -> KnownTime | None:
    """Find the time that stands first in nearly all `lines`; None if there is none.

    UnclearTime if there is one that is not known whole, or can be read in two ways.
    """
    looked_at = lines[:: max(1, len(lines) // _LOOKED_AT)]
    likely = {
        key: regex
        for key, regex in REGEXES.items()
        if 2 * sum(map(bool, map(regex.search, looked_at))) >= len(looked_at)
    }
    found = {key: [_first(regex, line) for line in lines] for key, regex in likely.items()}
    least = MOST * len(lines)
    known = {key: times for key, times in found.items() if sum(map(bool, times)) >= least}
    epoch = _epoch(lines)
    if not known:
        return epoch
    best = min(known, key=lambda key: _rank(known[key]))
    times = known[best]
    if epoch is not None and _is_before(epoch.spans, times):
        _check_epoch(epoch, times, best[0], lines)
        return epoch
    return _settled(best, known, lines)


def _rank(times: Sequence[_Written | None]) -> tuple[float, float]:
    """Order by where times begin, the longer first."""
    there = [time for time in times if time]
    start = sorted(time.start for time in there)[len(there) // 2]
    return start, -sum(time.end - time.start for time in there) / len(there)


def _is_before(spans: Sequence[tuple[int, int] | None], times: Sequence[_Written | None]) -> bool:
    pairs = [(span, time) for span, time in zip(spans, times, strict=True) if span and time]
    return bool(pairs) and all(span[0] < time.start for span, time in pairs)


def _check_epoch(epoch: KnownTime, times: Sequence[_Written | None], date: str, lines: Sequence[str]) -> None:
    """Refuse numbers that would be times over a year before those written behind them: they may be ids."""
    for span, time, line in zip(epoch.spans, times, lines, strict=True):
        day = _date(date, time.match.groupdict()) if span and time and "y" in date else None
        if span and time and day:
            number = line[slice(*span)]
            if float(number[:10]) < (day - timedelta(days=366)).timestamp():
                what = f"'{number}' stands before the time '{_text(time)}'"
                raise UnclearTime(f"{what}, and which is that of the event is not known", span[0])


def _first(regex: re.Pattern[str], line: str) -> _Written | None:
    match = regex.search(line)
    if match is None:
        return None
    fields = match.groupdict()
    half, weekday = fields["half"] or "", fields["weekday"] or ""
    shape = (
        ("EEEE" if weekday.title() in LONG_WEEKDAYS else "EEE") + fields["behind"] if weekday else "",
        fields["between"],
        re.sub("[A-Za-z]+", "a", half),
        _zone_form(fields["zone"] or ""),
        " yyyy" if fields.get("tail") else "",
    )
    return _Written(match.start(), match.end(), shape, match)


def _zone_form(zone: str) -> str:
    bare = zone.strip()
    blank = zone[: len(zone) - len(bare)]
    if not bare:
        return ""
    if bare[0] in "+-":
        return blank + ("XXX" if ":" in bare else "Z" if len(bare) > 3 else "X")
    return blank + ("XXX" if bare == "Z" else f"'{bare}'" if bare in ("UTC", "GMT") else "?")


def _settled(
    best: tuple[str, str], known: dict[tuple[str, str], list[_Written | None]], lines: Sequence[str]
) -> KnownTime:
    """Make the form of times that are read by `best`, if they are clear."""
    times = known[best]
    place = next(time for time in times if time)
    try:
        if best[0] == "d MMM yy" and ("MMM d", best[1]) in known:  # the first number may be no part of the time
            raise UnclearTime(f"'{_text(place)}' can be read as d MMM yy or MMM d")
        rivals = {date: other for (date, clock), other in known.items() if clock == best[1]}
        rivals = {date: other for date, other in rivals.items() if _same_place(other, times)}
        date = _date_form({date: other for date, other in rivals.items() if _all_valid(date, other)}, place)
        shape, kept = _shape(times, len(lines))
        for time, line in zip(kept, lines, strict=True):
            if time:
                _check_beside(time, line)
        form = write_form(date, best[1], shape, [time.match.groupdict() for time in kept if time])
        return KnownTime(form, [(time.start, time.end) if time else None for time in kept], bool(shape[3]))
    except UnclearTime as error:
        raise UnclearTime(str(error), place.start) from None


def _date_form(rivals: dict[str, list[_Written | None]], place: _Written) -> str:
    """Choose the order of day, month and year: the only one, or that in which the days of the lines follow closely."""
    if not rivals:
        raise UnclearTime(f"'{_text(place)}' is no date of the calendar")
    spans: dict[str, tuple[int, int]] = {}
    for date, times in rivals.items():
        days = {day for time in times if time and (day := _date(date, time.match.groupdict()))}
        spans[date] = ((max(days) - min(days)).days, len(days))
    best = min(rivals, key=lambda date: spans[date][0])
    span, count = spans[best]
    is_close = count >= _FEW_DAYS and span < 2 * count
    if len(rivals) > 1 and not (is_close and all(spans[date][0] > 10 * span for date in rivals if date != best)):
        raise UnclearTime(f"'{_text(place)}' can be read as {' or '.join(rivals)}")
    return best


def _shape(times: Sequence[_Written | None], lines: int) -> tuple[tuple[str, ...], list[_Written | None]]:
    """Find what the times of nearly all lines have in common; those that differ count as none."""
    shapes = Counter(time.shape for time in times if time)
    shape, count = shapes.most_common(1)[0]
    named = [time.match["zone"].strip() for time in times if time and "?" in time.shape[3]]
    if len(named) > (1 - MOST) * lines:
        raise UnclearTime(
            f"the times name the zone {' or '.join(list(dict.fromkeys(named))[:3])}, "
            "and such names mean different things in different places: "
            "write z for it in event_time_format, and its offset in [zone_offsets]"
        )
    if count < MOST * lines:
        examples = [next(_text(time) for time in times if time and time.shape == shape) for shape in list(shapes)[:2]]
        raise UnclearTime(f"the times are written in {len(shapes)} forms, as '{examples[0]}' and '{examples[1]}'")
    return shape, [time if time and time.shape == shape else None for time in times]


def _text(time: _Written) -> str:
    return time.match[0]


def _same_place(first: Sequence[_Written | None], other: Sequence[_Written | None]) -> bool:
    spans = [(time.start, time.end) if time else None for time in first]
    return spans == [(time.start, time.end) if time else None for time in other]


def _all_valid(date: str, times: Sequence[_Written | None]) -> bool:
    return all(_date(date, time.match.groupdict()) is not None for time in times if time)


def _date(date: str, fields: dict[str, str | None]) -> datetime | None:
    def get(*names: str) -> str:
        return next((str(fields[name]) for name in names if fields.get(name)), "")

    name = get("MMMM", "MMM")[:3].title()
    month = MONTHS.index(name) + 1 if name else int(get("MM", "M"))
    short = get("yy")
    year = int(get("yyyy") or (f"20{short}" if short else 2000))
    try:
        moment = datetime(year, month, int(get("dd", "d")), tzinfo=UTC)
    except ValueError:
        return None
    return moment if moment < datetime.now(UTC) + timedelta(days=366) else None


def _check_beside(time: _Written, line: str) -> None:
    """Refuse a line that holds a part of the time beside it, or another time before it."""
    before, after = line[: time.start], line[time.end :]
    what = f"'{line[time.start : time.end]}'"
    if found := ALSO_TIME.search(before):
        raise UnclearTime(f"'{found[0]}' stands before the time {what}, and which is that of the event is not known")
    found = PART_BEFORE.search(before) or PART_AFTER.search(COMMENT.sub("", after) if time.shape[3] else after)
    fields = time.match.groupdict()
    if not found and not any(fields.get(name) for name in ("yyyy", "yy", "tail")):
        found = YEAR_AFTER.search(after)
    if found:
        raise UnclearTime(f"'{found[0].strip()}' beside {what} looks like a part of that time, which is not known")


def _epoch(lines: Sequence[str]) -> KnownTime | None:
    """Find a number of seconds or parts of them since 1970 that stands first in the lines, or behind one word."""
    spans: list[tuple[int, int] | None] = []
    for line in lines:
        match = re.match(rf"(?:<\d+>)?\W{{0,3}}(?:\S{{1,40}}?[ \t|;,])?\[?(?P<number>{EPOCH})", line)
        spans.append(match.span("number") if match else None)
    there = [line[span[0] : span[1]] for line, span in zip(lines, spans, strict=True) if span]
    digits = {len(text.partition(".")[0]) for text in there}
    if len(there) < MOST * len(lines) or len(digits) != 1:
        return None
    length = digits.pop()
    seconds = [float(text) / 10 ** (length - 10) for text in there]
    if not all(946_684_800 <= number <= datetime.now(UTC).timestamp() + 86_400 for number in seconds):
        return None
    return KnownTime(EPOCH_DIGITS[length], spans, has_zone=True)
