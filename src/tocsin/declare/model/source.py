"""The contract of a source: a named stream of events, declared in `sources/<name>.toml`.

::

    title = "Logins of the web shop"
    owner = "platform@example.com"
    format = ["key-value", "json"]       # json | key-value | logfmt | regex, or json beside one of them; or events
    key = "user_id"                      # column that decides the partition
    event_time = "timestamp"             # column that holds the time of the event
    event_time_format = "iso8601"        # iso8601 | epoch-seconds | ... | syslog | a Spark pattern
    lateness = "10 seconds"              # how much later than its event time an event may be appended

    [schema]                             # columns and their types, in the order of the line
    user_id = "string"
    timestamp = "timestamp"

    [optional]                           # columns that may be missing or null (all others must be there)
    message = "string"

    [from]                               # columns whose field is named otherwise, or lies within a field
    ip_address = "source.ip"

    [enrich]                             # columns that are looked up by an address, in a file beside this one
    country = { by = "ip_address", file = "sources/networks.csv" }

`docs/write/sources.md` says what becomes of a record, case by case. Files are read by `tocsin.declare.source_file`.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

ColumnType = Literal["string", "boolean", "int", "bigint", "double", "timestamp"]
EPOCHS = ("epoch-seconds", "epoch-milliseconds", "epoch-microseconds", "epoch-nanoseconds")
SYSLOG = "syslog"
"""The name of the form of the times in syslog lines without a year, `Nov 24 12:00:01`."""
APPENDED = "ingested_at"
"""As the `event_time` of a source: the time at which the raw record was appended, the only one there is."""
RAW_RECORD = "$"
"""As the field of a column: the whole record, as it stands in the line."""
ENVELOPE = (
    "raw_topic",
    "raw_partition",
    "raw_offset",
    "event_time",
    "ingested_at",
    "source",
    "schema_version",
    "window",
    "tick",
)
"""Names that the platform gives to columns of events; a source may not declare them."""

EVENT_COLUMNS = {
    "raw_topic": "string",
    "raw_partition": "int",
    "raw_offset": "bigint",
    "event_time": "timestamp",
    "ingested_at": "timestamp",
    "source": "string",
    "schema_version": "int",
}
"""The columns of an event that come before the declared ones, and their types."""


_INGESTED = b'"ingested_at":"'
_EVENT_TIME = b'"event_time":"'
TICK_START = '{"tick":true'
"""A record of an events topic that begins so is a tick, not an event: it only moves event time on."""


class Format(StrEnum):
    """The form in which one record is written; `events` says that a flow writes the events, and there is no record."""

    JSON = "json"
    KEY_VALUE = "key-value"
    LOGFMT = "logfmt"
    REGEX = "regex"
    EVENTS = "events"


class Enrichment(BaseModel, frozen=True):
    """A column that a file of networks fills in, by the column `by` that holds the address.

    `file` is read by `tocsin.ingest.network_ranges`; its `digest` is empty if it cannot be read.
    """

    by: str
    file: Path
    digest: str


class Source(BaseModel, frozen=True, extra="forbid"):
    """The declaration in a source's file.

    Attributes:
        formats: the accepted forms; with two, a record whose first character is `{` is JSON.
        patterns: regular expressions with named groups (Java syntax, whole record; names as columns), for `regex` only;
            the first that matches a record reads it.
        ignore: regular expressions (Java syntax) of records that are left out, wherever in a record they are found.
        key: column that decides the partition; never empty in an event.
        event_time: column that holds the time of the event; that of the envelope where a flow writes the events;
            APPENDED where the records hold none.
        event_time_format: of that column; `timestamp` columns beside it are always ISO 8601.
        time_zone: of the event time where it names none, as "Europe/Berlin".
        zone_offsets: what the names of zones in event times mean, as {"EST": "-05:00"}; other names are not read.
        lateness: how much later than its event time an event may be appended and still count in its window.
        paths: fields that columns are read from, where they are not named like the column: a name, or names joined by
            dots for fields within fields; RAW_RECORD for the record.
        max_bytes: a longer record goes to quarantine.
        max_ahead: an event time further after its append time than this goes to quarantine. Half of the lateness unless
            told otherwise, one second at least: what is ahead of its time moves the watermark, and so takes as much
            from the lateness of all other events.
        silent_after: for how long it may have no input before its owner is told; None for that of the settings.
        schema_version: counted up by hand when a column changes its meaning.
    """

    name: str
    title: str
    owner: str
    formats: tuple[Format, ...]
    patterns: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    pair_separator: str = " | "
    key_separator: str = ": "
    key: str
    event_time: str = "event_time"
    event_time_format: str = "iso8601"
    time_zone: str = "UTC"
    zone_offsets: dict[str, str] = {}
    nulls: tuple[str, ...] = ()
    lateness: timedelta = timedelta(seconds=10)
    max_ahead: timedelta = Field(default_factory=lambda fields: max(fields["lateness"] / 2, timedelta(seconds=1)))
    max_bytes: int = 262_144
    partitions: int = 4
    history_days: int = 60
    silent_after: timedelta | None = None
    schema_version: int = 1
    columns: dict[str, str]
    optional: frozenset[str] = frozenset()
    paths: dict[str, str] = {}
    match_case: bool = False
    enrich: dict[str, Enrichment] = {}

    @property
    def is_derived(self) -> bool:
        """Return whether a flow writes its events: then it has no raw records, and none in quarantine."""
        return Format.EVENTS in self.formats

    def field_of(self, column: str) -> str:
        """Return the field of a record that `column` is read from."""
        return self.paths.get(column, column)

    @property
    def lacks_year(self) -> bool:
        """Return whether its event times are written without a year."""
        form = self.event_time_format
        return form == SYSLOG or (form not in ("iso8601", *EPOCHS) and "y" not in pattern_letters(form))


def columns_of(source: Source) -> dict[str, str]:
    """Names and types of the columns of landed and sealed events of `source`, in order."""
    return EVENT_COLUMNS | source.columns


def tick_value(moment: datetime) -> bytes:
    """The value of a tick record; its key is null."""
    return f'{TICK_START},"event_time":"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"}}'.encode()


def is_tick(value: bytes) -> bool:
    """Return whether a record is a tick, not an event."""
    return value.startswith(TICK_START.encode())


def ingested_at(value: bytes) -> str | None:
    """Find when an event came into the platform, or the time of a tick: ISO-8601; None in any other record.

    As text: it sorts like the time, and a backlog of a million is looked through in seconds.
    """
    mark = _EVENT_TIME if is_tick(value) else _INGESTED
    place = value.find(mark)
    if place < 0:
        return None
    start = place + len(mark)
    return value[start : start + 27].decode("ascii", "replace")


def pattern_letters(form: str) -> set[str]:
    """List the letters of a Spark datetime pattern that stand for a part of the time."""
    return {letter for letter in re.sub(r"'[^']*'", "", form) if letter.isalpha()}


def numbered_groups(pattern: str) -> tuple[str, dict[str, int]]:
    """`pattern` with its named groups as plain ones, and the number of each name: Java allows no underscore in names.

    ValueError if a name occurs twice, or a named group lies inside another.
    """
    written: list[str] = []
    names: dict[str, int] = {}
    open_groups: list[bool] = []
    count, position, in_class = 0, 0, False
    while position < len(pattern):
        name = _group_name(pattern, position)
        piece = pattern[position : position + 2] if pattern[position] == "\\" else pattern[position]
        position += len(piece)
        if in_class or piece in ("[", "]"):
            in_class = piece != "]"
        elif piece == "(":
            count += name is not None or pattern[position : position + 1] != "?"
            if name is not None:
                if name in names or any(open_groups):
                    raise ValueError(f"group '{name}' {'occurs twice' if name in names else 'lies inside another'}")
                names[name] = count
                position += len(name) + 3
            open_groups.append(name is not None)
        elif piece == ")" and open_groups:
            open_groups.pop()
        written.append(piece)
    return "".join(written), names


def _group_name(pattern: str, position: int) -> str | None:
    """The name of the group that opens at `position`, as in `(?<user_id>`; None when none does."""
    head = pattern[position : position + 3]
    if head != "(?<" or pattern[position + 3 : position + 4] in ("=", "!", ""):
        return None
    return pattern[position + 3 :].partition(">")[0]
