"""Guess a regular expression with named groups for plain log lines of one form.

A line is read as chunks between blanks. Chunks at one place that look alike in all lines are a group or, if they are
one word throughout, that word; from the first place on where lines differ, the rest is the group `message`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.model.source import SYSLOG, numbered_groups

AT, MESSAGE = "at", "message"
_MARK = "\0"
_DAY, _CLOCK = r"\d{4}-\d{2}-\d{2}", r"\d{2}:\d{2}:\d{2}"
_TIMES = (
    (rf"{_DAY}[T ]{_CLOCK}(?:\.\d{{1,9}})?(?:Z|[+-]\d{{2}}:?\d{{2}})?(?![\d,.])", "iso8601"),
    (rf"{_DAY} {_CLOCK},\d{{3}}(?!\d)", "yyyy-MM-dd HH:mm:ss,SSS"),
    (rf"\d{{2}}/[A-Z][a-z]{{2}}/\d{{4}}:{_CLOCK} [+-]\d{{4}}", "dd/MMM/yyyy:HH:mm:ss Z"),
    (rf"\d{{4}}/\d{{2}}/\d{{2}} {_CLOCK}(?![\d.])", "yyyy/MM/dd HH:mm:ss"),
    (rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}", SYSLOG),
)
_NO_BLANK, _NO_QUOTE, _NO_BRACKET = r"\S++", '[^"]*+', r"[^\]]*+"
_CHUNK = re.compile(r'[\w.-]+="[^"]*"[,;]?|"[^"]*"|\[[^\]]*\]:?|\S+')
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_KINDS = (
    ("address", r"\d{1,3}(?:\.\d{1,3}){3}"),
    ("level", rf"(?i:{_LEVEL})"),
    ("method", r"(?:GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS|CONNECT|TRACE)"),
    ("status", r"[1-5]\d\d"),
    ("number", r"-?\d+(?:\.\d+)?"),
    ("path", r"/\S*"),
)
"""Chunks that are a group even if it has one value in all lines, and its name."""


@dataclass(frozen=True)
class LinePattern:
    """A pattern that matches all lines.

    Attributes:
        pattern: for Java, as a source declares it; the time is its group `at`.
        time_format: how the time is written, as a source declares it.
        records: what each line has in each group; empty for what it lacks.
    """

    pattern: str
    time_format: str
    records: list[dict[str, str]]


def has_time(line: str) -> bool:
    """Return whether `line` holds a time in one of the forms that are known."""
    return any(re.search(form, line) for form, _ in _TIMES)


def guess_pattern(lines: Sequence[str]) -> LinePattern | None:
    """Guess the pattern of `lines`; None if they do not hold a time of one form at one place, or nothing else.

    Of several forms that all lines have, the one that comes first in the first line is that of the time.
    """
    forms = [(form, name) for form, name in _TIMES if all(re.search(form, line) for line in lines)]
    if not lines or not forms:
        return None
    form, name = min(forms, key=lambda one: _place(one[0], lines[0]))
    rows = [_CHUNK.findall(re.sub(form, _MARK, line, count=1)) for line in lines]
    pattern = _Draft(rows, form).write()
    plain, groups = numbered_groups(pattern)
    matches = [re.fullmatch(plain, line.strip()) for line in lines]
    if AT not in groups or len(groups) == 1 or not all(matches):
        return None
    records = [{group: match[number] or "" for group, number in groups.items()} for match in matches if match]
    return LinePattern(pattern, name, records)


def _place(form: str, line: str) -> int:
    found = re.search(form, line)
    assert found is not None
    return found.start()


class _Draft:
    """Writes the pattern of rows of chunks, place by place."""

    def __init__(self, rows: Sequence[Sequence[str]], form: str) -> None:
        self._rows, self._form = rows, re.sub(r"\(\?![^)]*\)", "", form)
        self._is_syslog = form == _TIMES[-1][0] and all(row[0] == _MARK for row in rows)
        self._names: set[str] = set()
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
        rest = self._group(MESSAGE, ".*+")
        return rf"{text}\s++{rest}" if len(parts) < shortest else rf"{text}(?:\s++{rest})?+"

    def _part(self, chunks: list[str], place: int) -> str | None:
        """Write what `chunks` have in common; None if that is nothing."""
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
        """Write `key=value`, of one key."""
        found = _all(r'([A-Za-z_]\w*)=(?:"([^"]*)"|([^"]*?))([,;]?)', chunks)
        if not found or len({(one[1], one[4], one[2] is None) for one in found}) > 1:
            return None
        key, quoted, end = found[0][1], found[0][2] is not None, found[0][4]
        value = self._group(key, _NO_QUOTE if quoted else rf"[^\s{end}]*+")
        return f'{key}="{value}"{end}' if quoted else f"{key}={value}{end}"

    def _request(self, chunks: list[str]) -> str | None:
        """Write a request as servers log it."""
        if not _all(r'"[A-Z]+ \S+ HTTP/[\d.]+"', chunks):
            return None
        method, path = self._group("method", "[A-Z]++"), self._group("path", _NO_BLANK)
        return f'"{method} {path} [^"]*+"'

    def _program(self, chunks: list[str]) -> str | None:
        """Write the name of a program with the number of its process, which some may lack."""
        found = _all(r"([\w./-]+)(\[\d+\])?:", chunks)
        if not found or not any(one[2] for one in found):
            return None
        return self._group("program", r"[^\s\[:]++") + r"(?:\[\d++\])?+:"

    def _enclosed(self, chunks: list[str]) -> str | None:
        """Write what stands in quotation marks or brackets."""
        if _all(r'"[^"]*"', chunks):
            return f'"{self._group("quoted", _NO_QUOTE)}"'
        found = _all(r"\[([^\]]*)\](:?)", chunks)
        if not found or len({one[2] for one in found}) > 1:
            return None
        name = next((kind for kind, form in _KINDS if all(re.fullmatch(form, one[1].strip()) for one in found)), "part")
        return rf"\[{self._group(name, _NO_BRACKET)}\]{found[0][2]}"

    def _word(self, chunks: list[str], place: int) -> str | None:
        """Write words: a group if they are of a known kind or differ, else the word itself."""
        end = chunks[0][-1] if chunks[0][-1] in ":,;|" and len({chunk[-1] for chunk in chunks}) == 1 else ""
        words = [chunk.removesuffix(end) if end else chunk for chunk in chunks]
        value = r"\S+" if end else _NO_BLANK
        if all(word == "-" for word in words):
            return _NO_BLANK + end  # nothing is known of it here; there may be in other lines
        kind = next((name for name, form in _KINDS if all(re.fullmatch(form, word) for word in words)), "")
        if place == 1 and self._is_syslog:
            kind = "host"
        if not kind and len(set(words)) == 1:
            return _literal(chunks[0])
        if not kind and not self._alike:
            return None
        return self._group(kind or "word", value) + end

    def _group(self, name: str, value: str) -> str:
        number, own = 1, name
        while own in self._names:
            number += 1
            own = f"{name}_{number}"
        self._names.add(own)
        return f"(?<{own}>{value})"


def _all(form: str, chunks: Sequence[str]) -> list[re.Match[str]]:
    """Match each of `chunks`; nothing if one does not match."""
    found = [re.fullmatch(form, chunk) for chunk in chunks]
    return [match for match in found if match] if all(found) else []


def _literal(text: str) -> str:
    """Write `text` as it is, in a TOML string between apostrophes too."""
    return re.sub(r"[^\w\s/:;,=<>@%&!~\"#-]", lambda one: r"\x27" if one[0] == "'" else "\\" + one[0], text)
