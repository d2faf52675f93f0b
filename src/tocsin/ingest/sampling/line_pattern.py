"""Guess a regular expression with named groups for plain log lines of one form.

A line is read as chunks between blanks, after its time has been found (`tocsin.ingest.sampling.known_times`), or as
cells between tabs, and between `|`, `;` or `,` where only so the time stands alone. Chunks at one place that look alike
in all lines are a group or, if they are one word throughout, that word; from the first place on where lines differ, the
rest is the group `message`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.declare.model.source import ENVELOPE, EPOCHS, SYSLOG, numbered_groups
from tocsin.ingest.sampling.known_times import MOST, KnownTime
from tocsin.ingest.sampling.time_grammar import EPOCH_DIGITS
from tocsin.ingest.time_patterns import MONTHS, WEEKDAYS, time_regex

AT, DATE, MESSAGE = "at", "date", "message"
_MARK = "\0"
_NO_BLANK, _NO_QUOTE, _NO_BRACKET = r"\S++", '[^"]*+', r"[^\]]*+"
_REST = "(?s:.*+)"  # to Java more characters end a line than to Python
_CHUNK = re.compile(r'[\w.-]+="[^"]*"[,;]?|"[^"]*"|\[[^\]]*\]:?|\S+', re.ASCII)
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_DATED = re.compile(r"\d{4}[-/._]\d\d?[-/._]\d\d?|\d\d?[-/._]\d\d?[-/._]\d{4}|\d:\d\d")
_PASSING = re.compile(rf"{_DATED.pattern}|(?<![A-Za-z])(?:{'|'.join((*MONTHS, *WEEKDAYS))})(?![a-z])")
"""A word with a date, a month, a weekday or a time of day: another in other lines, though one throughout a sample."""
_KINDS = (
    ("address", r"\d{1,3}(?:\.\d{1,3}){3}"),
    ("level", rf"(?i:{_LEVEL})"),
    ("method", r"(?:GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS|CONNECT|TRACE)"),
    ("status", r"[1-5]\d\d"),
    ("number", r"-?\d+(?:\.\d+)?"),
    ("path", r"/\S*"),
    (DATE, _DATED.pattern),
)
"""Chunks that are a group even if it has one value in all lines, and its name."""


@dataclass(frozen=True)
class LinePattern:
    """A pattern, for Java, that matches nearly all lines; the time is its group `at`.

    Attributes:
        time_format: how the time is written, as a source declares it.
        has_zone: the times name their zone or offset.
        records: what each line that it matches has in each group; empty for what it lacks.
    """

    pattern: str
    time_format: str
    has_zone: bool
    records: list[dict[str, str]]


def guess_pattern(lines: Sequence[str], time: KnownTime) -> LinePattern | None:
    """Guess the pattern of `lines` that hold `time`; None if it stands at no one place, or nothing else is there."""
    pairs = zip(lines, time.spans, strict=True)
    marked = [f"{line[: span[0]]}{_MARK}{line[span[1] :]}" for line, span in pairs if span]
    quotes = {end: '"' if end == "," else f'{end}"' for end in "\t|;,"}  # cells in quotes may hold what ends a cell
    known = [end for end, quote in quotes.items() if not any(quote in f"{end}{text}" for text in marked)]
    ends = ["", *(end for end in known if end != "\t")]
    if "\t" in known and all("\t" in text for text in marked):
        ends.insert(0, "\t")
    for end in ends:
        chunks = [text.split(end) if end else _CHUNK.findall(text) for text in marked]
        place, count = Counter(map(_place, chunks)).most_common(1)[0]
        if count >= MOST * len(lines):
            break
    else:
        return None
    draft = _Draft([row for row in chunks if _place(row) == place], form_regex(time.form), place, time.form == SYSLOG)
    pattern = draft.write_cells(end) if end else draft.write()
    plain, groups = numbered_groups(pattern)
    matches = [match for line in lines if (match := re.fullmatch(plain, line, re.ASCII))]
    if AT not in groups or len(groups) == 1 or len(matches) < MOST * len(lines):
        return None
    own = {line[slice(*span)] for line, span in zip(lines, time.spans, strict=True) if span}
    if not {match[groups[AT]] for match in matches} <= own:
        return None
    records = [{group: match[number] or "" for group, number in groups.items()} for match in matches]
    return LinePattern(pattern, time.form, time.has_zone, records)


def form_regex(form: str) -> str:
    """Make an expression without groups of a form of times."""
    if form in EPOCHS:
        digits = {known: number for number, known in EPOCH_DIGITS.items()}[form]
        return rf"\d{{{digits}}}" + (r"(?:\.\d{1,9})?+" if form == EPOCHS[0] else "")
    bare = re.sub(r"\(\?P<\w+>", "(?:", time_regex(form)).replace(r"\ ", " ").replace(r"\-", "-")
    return re.sub(r"\(\?:(\\d\{[\d,]+\})\)(?!\?)", r"\1", bare)


def _place(row: Sequence[str]) -> tuple[int, str]:
    """Say in which chunk the time stands, and what that chunk is beside it."""
    number = next(number for number, chunk in enumerate(row) if _MARK in chunk)
    return number, row[number]


class _Draft:
    def __init__(self, rows: Sequence[Sequence[str]], form: str, time: tuple[int, str], is_syslog: bool) -> None:
        self._rows, self._form, self._time = rows, form, time[0]
        self._is_syslog = is_syslog and time == (0, _MARK)
        self._names: set[str] = set(ENVELOPE)
        self._alike = len({len(row) for row in rows}) == 1

    def write(self) -> str:
        shortest, parts = min(map(len, self._rows)), []
        for place in range(shortest):
            part = self._part([row[place] for row in self._rows], place)
            if part is None:
                break
            parts.append(part)
        text = r"\s++".join(parts)
        if len(parts) == shortest and self._alike:
            return text
        rest = self._group(MESSAGE, _REST)
        return rf"{text}\s++{rest}" if len(parts) < shortest else rf"{text}(?:\s++{rest})?+"

    def write_cells(self, end: str) -> str:
        """Write cells that end with `end`, the last of which is the rest."""
        shortest = max(min(map(len, self._rows)) - 1, self._time + 1)
        value = f"[^{_literal(end)}]*+"
        cells = (self._cell([row[place] for row in self._rows], value) for place in range(shortest))
        text = _literal(end).join(cells)
        return rf"{text}(?:{_literal(end)}{self._group(MESSAGE, _REST)})?+"

    def _cell(self, cells: list[str], value: str) -> str:
        before, mark, after = cells[0].partition(_MARK)
        if mark:
            return self._around(before, AT, self._form, after)
        keys = {match[1] for match in _all(r'([A-Za-z_]\w*)=(?!").*', cells)}
        if len(keys) == 1:
            return f"{(key := keys.pop())}={self._group(key, value)}"
        return self._group(_kind(cells) or "word", value)

    def _part(self, chunks: list[str], place: int) -> str | None:
        first = chunks[0]
        if any(_MARK in chunk for chunk in chunks):
            before, _, after = first.partition(_MARK)
            return self._around(before, AT, self._form, after) if len(set(chunks)) == 1 else None
        for write in (self._pair, self._request, self._program, self._enclosed):
            if (part := write(chunks)) is not None:
                return part
        return self._word(chunks, place)

    def _around(self, before: str, name: str, value: str, after: str) -> str:
        return f"{_literal(before)}{self._group(name, value)}{_literal(after)}"

    def _pair(self, chunks: list[str]) -> str | None:
        found = _all(r'([A-Za-z_]\w*)=(?:"([^"]*)"|([^"]*?))([,;]?)', chunks)
        if not found or len({(match[1], match[4], match[2] is None) for match in found}) > 1:
            return None
        key, quoted, end = found[0][1], found[0][2] is not None, found[0][4]
        value = self._group(key, _NO_QUOTE if quoted else rf"[^\s{end}]*+")
        return f'{key}="{value}"{end}' if quoted else f"{key}={value}{end}"

    def _request(self, chunks: list[str]) -> str | None:
        if not _all(r'"[A-Z]+ \S+ HTTP/[\d.]+"', chunks):
            return None
        method, path = self._group("method", "[A-Z]++"), self._group("path", _NO_BLANK)
        return f'"{method} {path} [^"]*+"'

    def _program(self, chunks: list[str]) -> str | None:
        found = _all(r"([\w./-]+)(\[\d+\])?:", chunks)
        if not found or not any(match[2] for match in found):
            return None
        return self._group("program", r"[^\s\[:]++") + r"(?:\[\d++\])?+:"

    def _enclosed(self, chunks: list[str]) -> str | None:
        if _all(r'"[^"]*"', chunks):
            return f'"{self._group("quoted", _NO_QUOTE)}"'
        found = _all(r"\[([^\]]*)\](:?)", chunks)
        if not found or len({match[2] for match in found}) > 1:
            return None
        name = _kind([match[1].strip() for match in found]) or "part"
        return rf"\[{self._group(name, _NO_BRACKET)}\]{found[0][2]}"

    def _word(self, chunks: list[str], place: int) -> str | None:
        """Write words: a group if they are of a known kind or differ, else the word itself."""
        end = chunks[0][-1] if chunks[0][-1] in ":,;|" and len({chunk[-1] for chunk in chunks}) == 1 else ""
        words = [chunk.removesuffix(end) if end else chunk for chunk in chunks]
        value = r"\S+" if end else _NO_BLANK
        if all(word == "-" for word in words):
            return _NO_BLANK + end  # nothing is known of it here; there may be in other lines
        kind = _kind(words)
        if place == 1 and self._is_syslog:
            kind = "host"
        if not kind and len(set(words)) == 1 and not _PASSING.search(words[0]):
            return _literal(chunks[0])
        if not kind and not self._alike and place > self._time:
            return None
        return self._group(kind or "word", value) + end

    def _group(self, name: str, value: str) -> str:
        number, own = 1, name
        while own.lower() in self._names:
            number += 1
            own = f"{name}_{number}"
        self._names.add(own.lower())
        return f"(?<{own}>{value})"


def _kind(words: Sequence[str]) -> str:
    return next((name for name, form in _KINDS if all(re.fullmatch(form, word, re.ASCII) for word in words)), "")


def _all(form: str, chunks: Sequence[str]) -> list[re.Match[str]]:
    """Match each of `chunks`; nothing if one does not match."""
    found = [re.fullmatch(form, chunk, re.ASCII) for chunk in chunks]
    return [match for match in found if match] if all(found) else []


def _literal(text: str) -> str:
    """Write `text` as it is, in a TOML string between apostrophes too, which takes no control characters."""
    text = re.sub(r"[.^$|?*+()\[\]{}\\]", r"\\\g<0>", text)
    return re.sub(r"[\x00-\x1f\x7f']", lambda match: f"\\x{ord(match[0]):02x}", text)
