"""Guess the schema of a source from lines of a sample."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import ENVELOPE, EPOCHS, RAW_RECORD
from tocsin.declare.scaffold import SampleSchema
from tocsin.ingest.files.past_rows import FileForm, csv_records, form_of, open_text
from tocsin.ingest.line_forms import (
    BLANK,
    LOGFMT_PAIR,
    SYSLOG_COLUMNS,
    field_at,
    first_of_each,
    logfmt_fields,
    syslog_header,
)
from tocsin.ingest.replay.shifted_lines import moment_of
from tocsin.ingest.sampling.known_times import MOST, KnownTime, find_time
from tocsin.ingest.sampling.line_pattern import AT, DATE, MESSAGE, LinePattern, guess_pattern
from tocsin.ingest.sampling.time_grammar import ALSO_TIME
from tocsin.ingest.sampling.time_parts import NAMED_TIME, split_part
from tocsin.ingest.sampling.written_form import UnclearTime
from tocsin.ingest.time_patterns import MONTHS, time_regex

_BYTES, _LINES = 1_000_000, 1_000
_PAIR = re.compile(r"(?:\A|\s\|\s)\s*([A-Za-z_][A-Za-z0-9_.-]*):(?=\s|\Z)")
_XML = re.compile(r"<[?!]?[A-Za-z]")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ISO8601 = re.compile(time_regex("iso8601"))
_KEY_TYPES = ("string", "int", "bigint")
_EARLIEST, _AHEAD = 1_000_000_000, 366 * 86_400
"""A number is a time from 2001 on: an uptime, ticks of .NET, or seconds since 2001 would be one of the years before."""
_PER_SECOND = dict(zip(EPOCHS, (1, 1e3, 1e6, 1e9), strict=True))
_ARRIVAL = re.compile(r"(?i)(?:^|[_.]|time)(?:receiv|recv|arriv|ingest|index|processed|collected|insert|stored|loaded)")
"""So is named the time at which something on its way took a record, which is not that of the event."""
_OWN = re.compile(
    r"(?i)(?:(?:iso_?|system_?|event_?)?(?:time_?stamp|time|date_?time)|(?:event_?)?(?:date|ts|at)|t|when"
    r"|utc_?time(?:stamp)?|(?:occurred|started)(?:_?at)?|start|(?:time_?|date_?)(?:generated|created)|creation_?time)(?:_field)?$"
)
"""So is named the time of an event; a column for `event_time`, which is reserved, has `_field` behind it."""
_DURATION = re.compile(
    r"(?i)(?:up|down|run|life|idle|cpu|wait|response|total|elapsed)_?time|time_?(?:out|spent|taken)|duration"
)
_DAY = re.compile(rf"\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}|(?:19|20)\d{{6}}|(?i:{'|'.join(MONTHS)})")
_CLOCK = re.compile(r"\d:\d\d|^\d{6}(?:\.\d+)?$")
_FEW = 5
_NAMED_ENTITY = re.compile(
    r"(^|_|(?<=[a-z0-9])(?=[A-Z]))"
    r"(?i:user|customer|client|account|host|instance|device|sensor|ip|address|path|route|id)(_|$|(?=[A-Z]))"
)


def read_schema(path: Path) -> SampleSchema:
    """Guess the schema of the lines in `path`, or of its rows if it is CSV: the first thousand of a large file.

    ConfigError if it cannot be read, is empty or not text in UTF-8, its lines are of no form that can be guessed, or no
    column of all lines is a time, or can be a key.
    """
    lines, goes_on = _read_lines(path)
    return _schema(path, lines, goes_on=goes_on)


def _read_lines(path: Path) -> tuple[list[str], bool]:
    """Read the first thousand lines of `path` within its first megabyte, and whether it goes on.

    Rows of CSV are JSON objects of texts, as an import makes them. Errors as `read_schema`.
    """
    if form_of(path) is FileForm.CSV:
        rows = list(itertools.islice(filter(None, csv_records(path)), _LINES + 1))
        if not rows:
            raise ConfigError.one(path, "holds no row but that of column names")
        return _texts(path, rows[:_LINES], "row"), len(rows) > _LINES
    with open_text(path) as file:
        start = file.read(_BYTES)
    if b"\0" in start:  # which is UTF-8, but no text
        raise ConfigError.one(path, "is not text in UTF-8: it holds zero bytes")
    every = start.split(b"\n")[: -1 if len(start) == _BYTES else None]
    lines = [line for line in every if line.strip()]
    if not lines:
        raise ConfigError.one(path, "holds no line" if len(start) < _BYTES else "begins with a line of over a megabyte")
    return _texts(path, lines[:_LINES], "line"), len(start) == _BYTES or len(lines) > _LINES


def _texts(path: Path, lines: list[bytes], what: str) -> list[str]:
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8").strip(BLANK))
        except UnicodeDecodeError as error:
            cause = f"is not text in UTF-8: {what} {number} holds the byte {line[error.start]:02X}"
            raise ConfigError.one(
                path, f"{cause}; if it is Latin-1, write it anew with iconv -f LATIN1 -t UTF-8"
            ) from error
    return texts


def _schema(path: Path, lines: list[str], *, goes_on: bool) -> SampleSchema:
    form, records, guessed = _records(path, lines)
    fields = name_columns(records) if guessed is None else None
    if fields:
        needed = _needed(fields)
        records = [row | {name: needed[name][n] for name in needed} for n, row in enumerate(fields.records)]
    every = list(dict.fromkeys(name for record in records for name in record))
    names = [name for name in _distinct(every) if _COLUMN.fullmatch(name) and name.lower() not in ENVELOPE]
    values = {name: [record[name] for record in records if _is_there(record.get(name))] for name in names}
    types = _types(values, records, "csv" if form_of(path) is FileForm.CSV else form)
    always = {name: kind for name, kind in types.items() if len(values[name]) == len(records)}
    if guessed is None:
        time, time_format, has_zone = _event_time(path, always, values)
    else:
        time, time_format, has_zone = AT, guessed.time_format, guessed.has_zone
        always[AT] = "timestamp" if time_format == "iso8601" else "string"
    left = _unnamed(lines) if form == "logfmt" else ()
    field = fields.paths.get(time, time) if fields else time
    if reason := split_part(time, field, values, form=time_format, has_zone=has_zone):
        raise ConfigError.one(path, reason)
    likely = [name for name, kind in always.items() if name not in (time, DATE, MESSAGE) and kind in _KEY_TYPES]
    key = _choose_key(path, {name: values[name] for name in likely}, types, guessed)
    return SampleSchema(
        lines=len(lines),
        format=form,
        columns=always,
        optional={name: kind for name, kind in types.items() if name not in always},
        key=key,
        event_time=time,
        event_time_format=time_format,
        pattern=guessed.pattern if guessed else "",
        paths={name: field for name, field in fields.paths.items() if name in types} if fields else {},
        match_case=fields is not None and fields.match_case,
        has_zone=has_zone,
        unread=len(lines) - len(records),
        left_out=tuple([*fields.unread(types), *left] if fields else (name for name in every if name not in names)),
        goes_on=goes_on,
        busiest=max(Counter((str(record[key]), _minute(record[time], time_format)) for record in records).values()),
    )


def _choose_key(
    path: Path, texts: Mapping[str, list[Any]], types: Mapping[str, str], guessed: LinePattern | None
) -> str:
    texts = {name: of for name, of in texts.items() if not any(isinstance(value, dict | list) for value in of)}
    if not texts:
        what = "has no column in all lines that could be the key"
        what += f"; write the source by hand, from pattern = '{guessed.pattern}'" if guessed else ""
        raise ConfigError.one(path, what)
    return min(texts, key=lambda name: _unlikely_key(name, types[name], set(map(str, texts[name])), len(texts[name])))


def _needed(fields: JsonColumns) -> dict[str, list[Any]]:
    """Choose from fields within fields the time and the key, if the record has none that is likely at its top."""
    top = {name: [record.get(name) for record in fields.records] for name in fields.records[0]}
    needed: dict[str, list[Any]] = {}
    for is_likely in (_is_own_time, _is_time, _is_entity, _is_shared):
        if not any(is_likely(name, values) for name, values in (top | needed).items()):
            likely = ((name, values) for name, values in fields.nested.items() if is_likely(fields.paths[name], values))
            needed |= dict(itertools.islice(likely, 1))
    return needed


def _is_time(name: str, values: list[Any]) -> bool:
    if not all(map(_is_there, values)):
        return False
    try:
        _event_time(Path(), {name: _type(values, "json")}, {name: values})
    except ConfigError:
        return False
    return True


def _is_own_time(path: str, values: list[Any]) -> bool:
    return _ARRIVAL.search(path) is None and _is_time(path, values)


def _is_entity(path: str, values: list[Any]) -> bool:
    last = path.removesuffix(".name").rpartition(".")[2]  # `host.name` is a host, `user.type` is no user
    return _NAMED_ENTITY.search(last) is not None and _is_shared(path, values)


def _is_shared(name: str, values: list[Any]) -> bool:
    """Return whether `values` are some that come again, of a type that a key may have."""
    is_key = all(_is_there(value) and isinstance(value, str | int) for value in values)
    return is_key and 1 < len(set(map(str, values))) <= len(values) / 2 and not _is_time(name, values)


def _unlikely_key(name: str, kind: str, values: set[str], records: int) -> tuple[bool, bool, bool, int]:
    """Order columns by how unlikely they are the key: what is named like a user or a path and comes again is likely.

    Of the others the one with the fewest values beyond one: a shop rather than the text of a message, a constant or,
    last of all, a number that seldom comes again.
    """
    comes_again = 2 * len(values) <= records
    is_measure = kind != "string" and not comes_again and not _NAMED_ENTITY.search(name)
    return is_measure, len(values) == 1, not (_NAMED_ENTITY.search(name) and comes_again), len(values)


def _records(path: Path, lines: list[str]) -> tuple[str, list[dict[str, Any]], LinePattern | None]:
    if form_of(path) is FileForm.CSV:
        rows = [row for row in map(_json_fields, lines) if row]
        if len(rows) < MOST * len(lines):
            raise ConfigError.one(path, "has many rows with more cells than column names, or stray quotation marks")
        return "json", rows, None
    for form, read in (("json", _json_fields), ("key-value", _key_value_fields), ("logfmt", _logfmt)):
        records = [read(line) for line in lines]
        found = [record for record in records if record]
        if len(found) == len(records):
            # A line of text may hold `key=value`, and its time without a name before it.
            guessed = None if form == "json" else _of_text(path, lines, form, found)
            return (form, found, None) if guessed is None else ("regex", list(guessed.records), guessed)
        if form == "json" and 2 * sum(line.startswith('{"') for line in lines) > len(lines):
            number = next(n for n, record in enumerate(records, start=1) if not record)
            what = f"most lines are json, but not this one: {_json_fault(lines[number - 1])}"
            raise ConfigError.one(path, what, line=number)
    time = _known_time(path, lines)
    guessed = guess_pattern(lines, time) if time else None
    if guessed is not None:
        return "regex", list(guessed.records), guessed
    timeless = next((n for n, line in enumerate(lines, start=1) if _known_time(path, [line]) is None), None)
    what = 'is neither JSON, `key: value | key: value` nor logfmt; write the source by hand, with format = "regex"'
    what += ": the lines do not hold a time of one form at one place" if timeless is None else ""
    what += "" if timeless is None else f": no time that is known is in line {timeless}"
    raise ConfigError.one(path, what)


def _of_text(path: Path, lines: list[str], form: str, records: list[dict[str, Any]]) -> LinePattern | None:
    """Guess a pattern of lines that are of `form` too, if their time stands before the first field, or in none."""
    pair = _PAIR if form == "key-value" else re.compile(LOGFMT_PAIR)
    fields = pair.search(lines[0])
    if fields is None or (form == "logfmt" and syslog_header(lines[0].encode())):
        return None
    try:
        time = _line_time(lines)
    except UnclearTime as error:
        if error.start < fields.start():
            raise _unclear(path, error) from None
        time = None
    span = time.spans[0] if time else None
    if time and span and span[0] < fields.start():
        return guess_pattern(lines, time)
    if found := ALSO_TIME.search(lines[0], 0, fields.start()):
        raise _unclear(path, UnclearTime(f"'{found[0]}' stands before the first field, and is a part of a time"))
    return guess_pattern(lines, time) if time and not _have_time(records, form) else None


def _have_time(records: list[dict[str, Any]], form: str) -> bool:
    names = [name for name in records[0] if all(_is_there(record.get(name)) for record in records)]
    values = {name: [record[name] for record in records] for name in names}
    try:
        _event_time(Path(), {name: _type(values[name], form) for name in names}, values)
    except ConfigError:
        return False
    return True


def _known_time(path: Path, lines: list[str]) -> KnownTime | None:
    try:
        return _line_time(lines)
    except UnclearTime as error:
        raise _unclear(path, error) from None


def _line_time(lines: list[str]) -> KnownTime | None:
    time = find_time(lines)
    texts = [line[slice(*span)] for line, span in zip(lines, time.spans, strict=True) if span] if time else []
    if time and time.form not in EPOCHS and _is_ahead(_of_form(time, texts).moments, min):
        raise UnclearTime(f"'{texts[0]}' is still to come, so it is not the time of the event", lines[0].find(texts[0]))
    return time


def _unclear(path: Path, error: UnclearTime) -> ConfigError:
    return ConfigError.one(path, f"{error}; write the source by hand: docs/write/sources.md says how")


def _json_fields(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line, parse_constant=_refuse, object_pairs_hook=first_of_each)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _json_fault(line: str) -> str:
    try:
        json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return str(error)
    return "it is no object with fields"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON, though Python writes it")


def _key_value_fields(line: str) -> dict[str, Any]:
    starts = list(_PAIR.finditer(line))
    ends = [*(match.start() for match in starts), len(line)][1:]
    return first_of_each((match[1], line[match.end() : end].strip()) for match, end in zip(starts, ends, strict=True))


def _logfmt(line: str) -> dict[str, Any]:
    fields = {} if _XML.match(line) else logfmt_fields(line.encode())
    is_header = fields.keys() <= set(SYSLOG_COLUMNS)  # and nothing else: the message has no field
    return {} if is_header else {name: value.decode("utf-8", "replace") for name, value in fields.items()}


def _unnamed(lines: list[str]) -> Iterator[str]:
    """Show the first words of logfmt that are no field's, as those of a value with blanks and without quotes."""
    for line in lines:
        header = syslog_header(line.encode())
        fields = line.encode()[header.end() :].decode("utf-8", "replace") if header else line
        if words := " ".join(re.sub(LOGFMT_PAIR, "", fields).split()):
            yield f"words without a name, such as {json.dumps(words[:_LONGEST])}; a value with blanks needs quotes"
            return


def _distinct(names: list[str]) -> list[str]:
    """Leave out names that only their case tells from one before: columns are not told apart so."""
    return list({name.lower(): name for name in reversed(names)}.values())[::-1]


def _is_there(value: object) -> bool:
    return value is not None and value != ""


def _types(values: dict[str, list[Any]], records: list[dict[str, Any]], form: str) -> dict[str, str]:
    types = {name: _type(found, form) for name, found in values.items() if found or form == "regex"}
    empty = {name for record in records for name, value in record.items() if value == "" and form == "json"}
    return types | dict.fromkeys(types.keys() & empty, "string")  # in JSON an empty text is a text


def _type(values: list[Any], form: str) -> str:
    kinds = {_type_of(value, form) for value in values} or {"string"}
    if "double" in kinds and any(abs(_number(value)) >= 2**53 for value in values if _type_of(value, form) == "bigint"):
        return "string"  # a double would round it
    for wider in ("int", "bigint", "double"):
        if kinds <= {"int", "bigint", "double"} and kinds <= _up_to(wider):
            return wider
    return kinds.pop() if len(kinds) == 1 else "string"


def _up_to(kind: str) -> set[str]:
    order = ["int", "bigint", "double"]
    return set(order[: order.index(kind) + 1])


def _type_of(value: Any, form: str) -> str:
    """Name the type of `value`; all forms but JSON write numbers as text, and logfmt some with their unit."""
    as_text, unit = form != "json", "(ms)?" if form == "logfmt" else ""
    if isinstance(value, bool) or (as_text and value in ("true", "false")):
        return "boolean"
    if isinstance(value, float):
        return "double" if math.isfinite(value) else "string"
    if isinstance(value, int) or (as_text and re.fullmatch(rf"-?(?:0|[1-9]\d*)(\.\d+)?{unit}", value)):
        number = float(str(value).removesuffix("ms"))
        if not number.is_integer() or "." in str(value) or "ms" in str(value):
            return "double"
        return "int" if abs(number) < 2**31 else "bigint" if abs(number) < 2**63 else "string"
    return "timestamp" if _moment(value) else "string"


def _moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(_ISO8601.fullmatch(value)) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _event_time(path: Path, columns: dict[str, str], values: dict[str, list[Any]]) -> tuple[str, str, bool]:
    found: dict[str, _Times] = {}
    unclear: dict[str, str] = {}
    for name, kind in columns.items():
        try:
            times = _read_times(name, kind, values[name])
        except UnclearTime as error:
            unclear[name] = f": {name}: {error}"
        else:
            found |= {name: times} if times and not _is_ahead(times.moments, min) else {}
    unclear |= _unread_times({name: values[name] for name in columns if name not in found | unclear})
    best = _likely_time(found) if found else ""
    is_doubtful = not best or _ARRIVAL.search(best) is not None or _is_ahead(found[best].moments)
    doubts = [why for name, why in unclear.items() if is_doubtful or (_OWN.match(name) and not _OWN.match(best))]
    if best and not doubts:
        return best, found[best].form, found[best].has_zone
    now = datetime.now(UTC).isoformat(timespec="seconds")
    what = f"has no column in all lines that is a time, as in {now}, or seconds or milliseconds since 1970"
    what = (f"has '{best}', which may not say when the event was" if best else what) + "".join(doubts[:1])
    raise ConfigError.one(path, f'{what}; if it stands without a name, declare format = "regex": docs/write/sources.md')


def _unread_times(values: Mapping[str, list[Any]]) -> dict[str, str]:
    """Find a time of a form that is not known, or in two columns, by what columns are called and hold."""
    named = [name for name in values if (_OWN.match(name) or NAMED_TIME.search(name)) and not _DURATION.search(name)]
    texts = {name: [str(value) for value in values[name] if isinstance(value, str | int)] for name in named}
    days, clocks = ([name for name in texts if texts[name] and all(map(form.search, texts[name]))]
                    for form in (_DAY, _CLOCK))  # fmt: skip
    whole = next((name for name in days if name in clocks), None)
    if whole is not None:
        return {whole: f": {whole}: '{texts[whole][0]}' is a time of a form that is not known"}
    if {"year", "month", "day", "hour"} <= {name.lower() for name in values}:
        days, clocks = ["year"], ["month"]
    if not days or not clocks:
        return {}
    return {days[0]: f": the time is written in '{days[0]}' and '{clocks[0]}', and a source reads it from one field"}


@dataclass(frozen=True)
class _Times:
    """The times in a column, in seconds since 1970, and how they are written."""

    form: str
    moments: list[float]
    has_zone: bool


def _read_times(name: str, kind: str, values: list[Any]) -> _Times | None:
    """Read `values` as times; None if they are none, UnclearTime if they may be several."""
    if kind == "timestamp":
        times = list(map(datetime.fromisoformat, values))
        moments = [(time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() for time in times]
        return _Times("iso8601", moments, all(time.tzinfo for time in times))
    texts = [str(value) for value in values]
    is_named = (_OWN.match(name) or NAMED_TIME.search(name)) is not None
    if _DURATION.search(name) or not (is_named or kind == "string") or max(map(len, texts)) > _LONGEST:
        return None
    if is_named and all(re.fullmatch(r"[0-9.eE+]+(ms)?", text) for text in texts):
        return _of_numbers(texts)
    time = find_time(texts)
    if time is None or any(span not in (None, (0, len(text))) for span, text in zip(time.spans, texts, strict=True)):
        return None
    if time.form in EPOCHS:  # of any other name it is a number of a customer, or a phone's
        return _of_numbers(texts) if is_named else None
    return _of_form(time, texts)


def _of_form(time: KnownTime, texts: list[str]) -> _Times:
    moments, last = [], 0.0
    for match in map(re.compile(time_regex(time.form)).fullmatch, texts):
        with contextlib.suppress(ValueError):  # 24:30, or the 29th of February of no year near
            last = moment_of(match, UTC).timestamp() if match else last
        moments.append(last)
    return _Times(time.form, moments, time.has_zone)


def _of_numbers(texts: list[str]) -> _Times | None:
    for form, per_second in _PER_SECOND.items():
        seconds = [_number(text) / per_second for text in texts]
        if min(seconds) >= _EARLIEST and max(seconds) < datetime.now(UTC).timestamp() + _AHEAD:
            return _Times(form, seconds, has_zone=True)
    return None


def _likely_time(found: Mapping[str, _Times]) -> str:
    """Choose one of the columns; one of arrivals only if no other time is within a day of it."""
    newest = max((max(times.moments) for times in found.values() if not _is_ahead(times.moments)), default=0.0)
    names = sorted(
        found, key=lambda name: (*_unlikely_time(name, found[name].moments, newest), _is_local(name, found[name]))
    )
    if not _ARRIVAL.search(names[0]):
        return names[0]
    pairs = {name: list(zip(found[name].moments, found[names[0]].moments, strict=True)) for name in names}
    near = {name for name in names if sum(abs(a - b) < 86_400 for a, b in pairs[name]) >= MOST * len(pairs[name])}
    return next((name for name in names if name in near and not _ARRIVAL.search(name)), names[0])


def _is_local(name: str, times: _Times) -> bool:
    return not (times.has_zone or "utc" in name.lower() or "gmt" in name.lower())


def _is_ahead(moments: list[float], of: Callable[[list[float]], float] = max) -> bool:
    return of(moments) > datetime.now(UTC).timestamp() + 86_400


def _unlikely_time(name: str, moments: list[float], newest: float) -> tuple[bool, bool, bool, bool, int]:
    """Order columns by how unlikely they are the time of the event.

    It is not to come, often has a name of its own, does not stay the same, is in order and not years ago.
    """
    pairs = list(itertools.pairwise(moments))
    rising, falling = (sum(sign * first <= sign * second for first, second in pairs) for sign in (1, -1))
    is_disordered = max(rising, falling) < MOST * len(pairs)
    is_constant = len(set(moments)) == 1 and len(moments) >= _FEW
    years = int((newest - max(moments)) / (365 * 86_400))
    is_own = _OWN.match(name) is not None and not ((is_disordered or is_constant) and years)
    return _is_ahead(moments), not is_own, is_constant, is_disordered, years


def _minute(value: Any, form: str) -> int | str:
    if form in EPOCHS:
        return int(_number(value) / _PER_SECOND[form] / 60)
    if form == "iso8601" and _moment(value):
        return int(datetime.fromisoformat(value).timestamp() / 60)
    return re.sub(r":\d\d(?!:).*", "", str(value))  # all but the seconds and what follows them


def _number(value: Any) -> float:
    return float(str(value).removesuffix("ms"))


_LONGEST, _DEEPEST, _MOST_NESTED, _NESTED_SHOWN = 64, 6, 300, 40


@dataclass(frozen=True)
class JsonColumns:
    """Columns of records, each with its columns from fields at the top.

    Attributes:
        nested: the columns that fields within fields would be, and what they hold in each record.
        paths: of columns of either kind whose name is not that of their field.
        left_out: fields that are no column, with the reason.
        match_case: some record has fields whose names differ only by case.
    """

    records: list[dict[str, Any]]
    nested: dict[str, list[Any]]
    paths: dict[str, str]
    left_out: list[str]
    match_case: bool

    def unread(self, columns: Collection[str]) -> Iterator[str]:
        """Name the fields that none of `columns` holds, with the reason, and those that it holds only within others."""
        yield from self.left_out
        inner = [self.paths[name] for name in self.nested if name not in columns]
        if inner:
            shown = ", ".join(inner[:_NESTED_SHOWN]) + (", ..." if len(inner) > _NESTED_SHOWN else "")
            yield f"{shown} (within columns; name the path in [from] to make one a column)"


def name_columns(records: list[dict[str, Any]]) -> JsonColumns:
    """Name columns for all fields of `records`."""
    columns: dict[str, str] = {}  # by field
    left_out = []
    match_case = any(len({name.lower() for name in record}) < len(record) for record in records)
    for field in dict.fromkeys(name for record in records for name in record):
        like = next((column for column in columns if column.lower() == field.lower()), None)
        if like is not None and not match_case:
            left_out.append(f"{_shown(field)} (read as {like}: they differ only by case)")
        elif reason := _unusable(field):
            left_out.append(f"{_shown(field)} ({reason})")
        elif all(record.get(field) in (None, "") for record in records):
            left_out.append(f"{_shown(field)} (has no value in the sample)")
        else:
            columns[field] = _free_name(field, columns.values())
    rows = [
        {column: field_at(record, field, match_case=match_case) for field, column in columns.items()}
        for record in records
    ]
    found = dict.fromkeys(path for record in records for path in _paths(record))
    inner = [path for path in found if path not in columns and not _unusable(path)][:_MOST_NESTED]
    nested: dict[str, list[Any]] = {}
    paths = {column: field for field, column in columns.items() if column != field}
    for path in inner:
        column = _free_name(path, [*columns.values(), *nested])
        nested[column] = [field_at(record, path, match_case=match_case) for record in records]
        paths[column] = path
    return JsonColumns(rows, nested, paths, left_out, match_case)


def _unusable(field: str) -> str:
    if field == RAW_RECORD:
        return "means the whole record in a source"
    return "" if field.strip() and field.isprintable() else "its name cannot be written"


def _shown(field: str) -> str:
    return field if field.strip() and field.isprintable() else json.dumps(field)


def _free_name(field: str, taken: Any) -> str:
    """Make a column name of `field` that is neither reserved nor `taken`."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", field).strip("_" if not re.fullmatch(r"\w+", field, re.ASCII) else "")
    name = name if re.match(r"[A-Za-z_]", name) else f"field_{name}".rstrip("_")
    name = f"{name}_field" if name.lower() in ENVELOPE else name
    used, number, own = {other.lower() for other in taken}, 1, name[:_LONGEST]
    while own.lower() in used:
        number += 1
        own = f"{name[: _LONGEST - 4]}_{number}"
    return own


def _paths(record: Mapping[str, Any], before: str = "", depth: int = 1) -> Iterator[str]:
    for name, value in record.items():
        path = f"{before}{name}"
        if isinstance(value, dict) and depth < _DEEPEST and name and "." not in name:
            yield from _paths(value, f"{path}.", depth + 1)
        elif before and name and "." not in name and not isinstance(value, dict | list):
            yield path
