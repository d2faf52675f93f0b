"""The contract of a source: a named stream of events, declared in `sources/<name>.toml`.

::

    title = "Logins of the web shop"
    owner = "platform@example.com"
    format = ["key-value", "json"]       # json | key-value | regex, or json beside one of the others
    key = "user_id"                      # column that decides the partition
    event_time = "timestamp"             # column that holds the time of the event
    event_time_format = "iso8601"        # iso8601 | epoch-seconds | epoch-milliseconds | a Spark datetime pattern
    lateness = "10 seconds"              # how much later than its event time an event may be appended

    [schema]                             # columns and their types, in the order of the line
    user_id = "string"
    timestamp = "timestamp"

    [optional]                           # columns that may be missing or null (all others must be there)
    message = "string"
"""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tocsin.durations import parse_duration
from tocsin.errors import ConfigError, Fault, nearest

TYPES = ("string", "boolean", "int", "bigint", "double", "timestamp")
ENVELOPE = ("raw_topic", "raw_partition", "raw_offset", "event_time", "ingested_at", "source", "schema_version", "window", "tick")


class Format(StrEnum):
    """How one record is written."""

    JSON = "json"
    KEY_VALUE = "key-value"
    REGEX = "regex"


class Source(BaseModel):
    """What a source's file declares.

    Attributes:
        name: the file name without `.toml`.
        formats: the accepted forms; with two, a record whose first character is `{` is JSON.
        pattern: regular expression with named groups (Java syntax, whole record), for `regex` only.
        pair_separator, key_separator: of a key-value line, as in `user_id: X | action: A`.
        columns: declared columns and their types, in order.
        optional: those of them that may be missing or null.
        max_bytes: a longer record goes to quarantine.
        max_ahead: an event time further after its append time than this goes to quarantine.
        partitions: of its raw and events topics.
        schema_version: counted up by hand when a column changes its meaning.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    owner: str
    formats: tuple[Format, ...]
    pattern: str | None = None
    pair_separator: str = " | "
    key_separator: str = ": "
    key: str
    event_time: str
    event_time_format: str = "iso8601"
    lateness: timedelta = timedelta(seconds=10)
    max_ahead: timedelta = timedelta(minutes=5)
    max_bytes: int = Field(default=262_144, gt=0)
    partitions: int = Field(default=4, ge=1, le=256)
    schema_version: int = Field(default=1, ge=1)
    columns: dict[str, str]
    optional: frozenset[str] = frozenset()

    @field_validator("lateness", "max_ahead", mode="before")
    @classmethod
    def _duration(cls, value: object) -> object:
        return parse_duration(value) if isinstance(value, str) else value

    @field_validator("columns")
    @classmethod
    def _known_columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for column, kind in columns.items():
            if kind not in TYPES:
                near = nearest(kind, TYPES)
                hint = f"; did you mean '{near}'?" if near else ""
                raise ValueError(f"{column}: '{kind}' is not a type (one of {', '.join(TYPES)}){hint}")
            if column in ENVELOPE:
                raise ValueError(f"{column}: is a name of the event envelope; choose another")
        return columns

    @model_validator(mode="after")
    def _consistent(self) -> Source:
        faults = []
        for label, column in (("key", self.key), ("event_time", self.event_time)):
            if column not in self.columns:
                near = nearest(column, self.columns)
                faults.append(f"{label}: '{column}' is not a column" + (f"; did you mean '{near}'?" if near else ""))
            elif column in self.optional:
                faults.append(f"{label}: '{column}' may not be optional")
        if len(set(self.formats) - {Format.JSON}) > 1 or len(set(self.formats)) != len(self.formats) or not self.formats:
            faults.append("format: one form, or json beside one other")
        if (self.pattern is not None) != (Format.REGEX in self.formats):
            faults.append("pattern: goes with format regex, and only with it")
        groups = set(re.findall(r"\(\?<([A-Za-z][A-Za-z0-9]*)>", self.pattern or ""))
        faults += [f"pattern: group '{group}' is not a column" for group in sorted(groups - self.columns.keys())]
        if faults:
            raise ValueError("; ".join(faults))
        return self


def read_source(path: Path) -> Source:
    """The source declared in `path`.

    Raises:
        ConfigError: with every fault of the file. A retry does not help.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError.one(path, f"is not TOML: {error}") from error
    fields, faults = _fields(table, path)
    try:
        source = Source(name=path.stem, **fields)
    except ValidationError as error:
        faults += [_fault(path, detail["loc"], detail["msg"]) for detail in error.errors()]
        raise ConfigError(faults) from error
    if faults:
        raise ConfigError(faults)
    return source


def _fields(table: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[Fault]]:
    """The table of a file as fields of Source: [schema] and [optional] joined, unknown keys as faults."""
    written = set(Source.model_fields) - {"name", "formats", "columns"} | {"format", "schema"}
    faults = [
        Fault(str(path), "is not a key of a source", key=key, nearest=nearest(key, written))
        for key in table
        if key not in written
    ]
    fields = {key: value for key, value in table.items() if key in written - {"format", "schema", "optional"}}
    schema, optional = table.get("schema", {}), table.get("optional", {})
    for key, part in (("schema", schema), ("optional", optional)):
        if not isinstance(part, dict):
            faults.append(Fault(str(path), 'must be a table of columns, as in user_id = "string"', key=key))
            return fields, faults
    form = table.get("format", ())
    fields |= {"columns": {**schema, **optional}, "optional": frozenset(optional)}
    fields["formats"] = (form,) if isinstance(form, str) else form
    return fields, faults


def _fault(path: Path, location: tuple[int | str, ...], message: str) -> Fault:
    """One fault out of pydantic's detail, in the words of the file."""
    names = {"formats": "format", "columns": "schema"}
    key = ".".join(names.get(str(part), str(part)) for part in location) or None
    what = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    near = nearest(what.split("'")[1], [f.value for f in Format]) if key and key.startswith("format") and "'" in what else None
    return Fault(str(path), "is missing" if message == "Field required" else what, key=key, nearest=near)
