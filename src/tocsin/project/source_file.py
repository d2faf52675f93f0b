"""Read `sources/<name>.toml`: all faults of a file at once, each with its line, its key and the nearest valid name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tocsin.model.durations import parse_duration
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.names import valid_name
from tocsin.model.sizes import VALUE_BYTES
from tocsin.model.source import ENVELOPE, EPOCHS, LONGEST_HISTORY, TYPES, Format, Source, numbered_groups

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REQUIRED = ("title", "owner", "format", "key", "event_time", "schema")
_EXAMPLE = "yyyy-MM-dd HH:mm:ss"
_PATTERN_LETTERS = set("GyMLdDQqEaFhKkHmsSVzOXxZ")


def read_source(path: Path) -> Source:
    """The source declared in `path`.

    Raises:
        ConfigError: with every fault of the file. A retry does not help.
    """
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError.one(path, f"is not TOML: {error}") from error
    reader = _Reader(path, text, table)
    fields = reader.read()
    if reader.faults:
        raise ConfigError(sorted(reader.faults, key=lambda fault: fault.line or 0))
    return Source(name=path.stem, **fields)


class _Reader:
    """Reads one table and gathers every fault on the way."""

    def __init__(self, path: Path, text: str, table: dict[str, Any]) -> None:
        self.path, self.table = path, table
        self.faults: list[Fault] = []
        self._lines = text.splitlines()
        self._readers: dict[str, Callable[[str], Any]] = {
            "title": self._text,
            "owner": self._owner,
            "format": self._formats,
            "pattern": self._text,
            "pair_separator": self._text,
            "key_separator": self._text,
            "key": self._text,
            "event_time": self._text,
            "event_time_format": self._text,
            "lateness": self._duration,
            "max_ahead": self._duration,
            "max_bytes": lambda key: self._number(key, VALUE_BYTES),
            "partitions": lambda key: self._number(key, 256),
            "history_days": lambda key: self._number(key, LONGEST_HISTORY),
            "silent_after": self._duration,
            "schema_version": lambda key: self._number(key, 1_000_000),
            "schema": self._columns,
            "optional": self._columns,
        }

    def fault(self, key: str | None, what: str, *, near: str | None = None) -> None:
        line = None if key is None else self._line(key)
        self.faults.append(Fault(str(self.path), what, key=key, line=line, nearest=near))

    def read(self) -> dict[str, Any]:
        """The fields of Source but its name."""
        if not _NAME.fullmatch(self.path.stem):
            what = "the file name becomes part of topic names: small letters, digits, - and _ only"
            self.fault(None, f"{what}; rename it to {valid_name(self.path.stem)}.toml")
        for key in self.table:
            if key not in self._readers:
                self.fault(key, "is not a key of a source", near=nearest(key, self._readers))
        for key in _REQUIRED:
            if key not in self.table:
                self.fault(key, "is missing", near=None)
        values = {key: read(key) for key, read in self._readers.items() if key in self.table}
        schema, optional = values.pop("schema", {}), values.pop("optional", {})
        values |= {"formats": values.pop("format", ()), "columns": schema | optional, "optional": frozenset(optional)}
        self._check_columns(schema, optional)
        self._check_pattern(values)
        self._check_references(values)
        return values

    # --- one key ------------------------------------------------------------------------------------------------------

    def _text(self, key: str) -> str:
        value = self.table[key]
        if isinstance(value, str) and value.strip():
            return value
        self.fault(key, f"must be a text that is not empty, not {value!r}")
        return ""

    def _owner(self, key: str) -> str:
        value = self._text(key)
        if value and (value.count("@") != 1 or any(c.isspace() or c in "<>,;" for c in value)):
            self.fault(key, f"must be one e-mail address, not '{value}'")
        return value

    def _duration(self, key: str) -> timedelta | None:
        try:
            return parse_duration(self._text(key))
        except ValueError as error:
            if self.table[key]:
                self.fault(key, str(error))
            return None

    def _number(self, key: str, most: int) -> int:
        value = self.table[key]
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.fault(key, f"must be a whole number from 1 to {most}, not {value!r}")
        return 1

    def _formats(self, key: str) -> tuple[str, ...]:
        value = self.table[key]
        forms = [value] if isinstance(value, str) else value
        if not isinstance(forms, list) or not forms or not all(isinstance(form, str) for form in forms):
            self.fault(key, f"must be json, key-value or regex, or json beside one of the others, not {value!r}")
            return ()
        for form in forms:
            if form not in list(Format):
                self.fault(key, f"'{form}' is not a format ({', '.join(Format)})", near=nearest(form, Format))
        if len(set(forms)) != len(forms) or len(set(forms) - {Format.JSON}) > 1:
            self.fault(key, "must be one form, or json beside one other")
        return tuple(forms)

    def _columns(self, key: str) -> dict[str, str]:
        value = self.table[key]
        if not isinstance(value, dict):
            self.fault(key, 'must be a table of columns, as in user_id = "string"')
            return {}
        for column, kind in value.items():
            if not isinstance(kind, str) or kind not in TYPES:
                near = nearest(kind, TYPES) if isinstance(kind, str) else None
                self.fault(f"{key}.{column}", f"{kind!r} is not a type ({', '.join(TYPES)})", near=near)
        return value

    # --- what must fit together ---------------------------------------------------------------------------------------

    def _check_columns(self, schema: dict[str, str], optional: dict[str, str]) -> None:
        seen: dict[str, str] = {}
        for table, columns in (("schema", schema), ("optional", optional)):
            for column in columns:
                key = f"{table}.{column}"
                if not _COLUMN.fullmatch(column):
                    self.fault(key, "is no name of a column: letters, digits and _ only, and no digit first")
                if column.lower() in ENVELOPE:
                    self.fault(key, "is a name of the event envelope; choose another")
                if column.lower() in seen:
                    self.fault(key, f"is declared already, as {seen[column.lower()]}; case does not tell columns apart")
                seen.setdefault(column.lower(), key)

    def _check_pattern(self, values: dict[str, Any]) -> None:
        formats, pattern = values["formats"], values.get("pattern")
        if "pattern" not in self.table and Format.REGEX in formats:
            self.fault("pattern", "is missing; format regex needs it")
        for key, form in (("pattern", "regex"), ("pair_separator", "key-value"), ("key_separator", "key-value")):
            if key in self.table and form not in formats:
                self.fault(key, f"goes with format {form} only")
        if pattern:
            self._check_groups(pattern, values)

    def _check_groups(self, pattern: str, values: dict[str, Any]) -> None:
        try:
            plain, groups = numbered_groups(pattern)
        except ValueError as error:
            self.fault("pattern", str(error))
            return
        broken = _unbalanced(plain)
        if broken:
            self.fault("pattern", f"is not a regular expression: {broken}")
        if not groups:
            self.fault("pattern", "needs named groups, as in (?<user_id>[^ ]+)")
        for group in groups.keys() - values["columns"].keys():
            self.fault("pattern", f"group '{group}' is not a column", near=nearest(group, values["columns"]))
        if Format.JSON not in values["formats"]:
            for column in sorted(values["columns"].keys() - values["optional"] - groups.keys()):
                self.fault("pattern", f"has no group for the column '{column}', which is not optional")

    def _check_references(self, values: dict[str, Any]) -> None:
        columns = values["columns"]
        for key in ("key", "event_time"):
            name = values.get(key)
            if name and name not in columns:
                self.fault(key, f"'{name}' is not a column", near=nearest(name, columns))
            elif name in values["optional"]:
                self.fault(key, f"'{name}' may not be optional")
        form, kind = values.get("event_time_format") or "iso8601", columns.get(values.get("event_time"))
        if not _is_time_format(form):
            what = f"'{form}' is neither iso8601, {EPOCHS[0]}, {EPOCHS[1]} nor a pattern with a year, as in {_EXAMPLE}"
            self.fault("event_time_format", what, near=nearest(form, ("iso8601", *EPOCHS)))
        elif kind in ("int", "bigint", "double") and form not in EPOCHS:
            self.fault("event_time_format", f"a column of type {kind} needs {EPOCHS[0]} or {EPOCHS[1]}")
        elif kind == "boolean":
            self.fault("event_time", "a boolean cannot hold a time")

    def _line(self, key: str) -> int | None:
        """1-based line of `key` (`schema.user_id` for a column); None when it is not written."""
        table, _, name = key.rpartition(".")
        inside = ""
        for number, line in enumerate(self._lines, start=1):
            header = re.match(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]", line)
            inside = header.group(1) if header else inside
            written = inside == table and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line)
            if written or (header and key == inside):
                return number
        return None


def _is_time_format(form: str) -> bool:
    """Whether `form` is a name, or a Spark datetime pattern that has a year (without one, Spark takes 1970)."""
    letters = re.sub(r"'[^']*'", "", form)
    pattern = "y" in letters and all(c in _PATTERN_LETTERS for c in letters if c.isalpha())
    return form in ("iso8601", *EPOCHS) or pattern


def _unbalanced(pattern: str) -> str | None:
    """What is wrong with the brackets and repeats of `pattern`; None when nothing is.

    Python reads the pattern here and Java later: only faults that both have in common are told.
    """
    common: Iterable[str] = ("unterminated", "missing )", "unbalanced", "nothing to repeat", "bad character range")
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error) if any(text in str(error) for text in common) else None
    return None
