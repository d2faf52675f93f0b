"""Read `sources/<name>.toml`: all faults of a file at once, each with its line, its key and the nearest valid name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool, StrictInt, ValidationError

from tocsin.declare.model.errors import nearest
from tocsin.declare.model.sizes import VALUE_BYTES
from tocsin.declare.model.source import (
    APPENDED,
    EPOCHS,
    RAW_RECORD,
    SYSLOG,
    Enrichment,
    Format,
    Source,
    numbered_groups,
    pattern_letters,
)
from tocsin.declare.model.table import TableSpec
from tocsin.declare.validation import Address, ColumnName, Columns, Duration, Text, TomlReader, as_list, faults_of

_EXAMPLE = "yyyy-MM-dd HH:mm:ss"
_ANYTHING = ("a", "7", "{", "-")
"""A pattern that is found in each of these texts is found in any."""
_PATTERN_LETTERS = set("GyMLdDEahKkHmsSVzOXxZ")
_ZONE_LETTERS = set("VzOXxZ")
_ZONE_NAMES = (
    "holds z, the name of a zone, and such names mean different things in different places: say what they mean with "
    '[zone_offsets], as in EST = "-05:00"; a time with another name goes to quarantine'
)
_NO_ZONE_NAMES = "holds no z, so [zone_offsets] are of no use"
_NO_HALF = "holds hours of 12 (h, K) and no a, so 1 may be 13: write HH for hours of 24, or a where AM or PM stands"
_TIME_FORMATS = ("iso8601", *EPOCHS, SYSLOG)


def _formats(formats: tuple[Format, ...]) -> tuple[Format, ...]:
    if Format.EVENTS in formats and len(formats) > 1:
        raise ValueError("must be events alone: a flow writes them, in no other form")
    if len(set(formats)) != len(formats) or len(set(formats) - {Format.JSON}) > 1:
        raise ValueError("must be one format, or json with one other")
    return formats


def _time_zone(name: str) -> str:
    if name != "UTC" and ("/" not in name or name not in available_timezones()):
        raise ValueError(f"must be a time zone such as Europe/Berlin, not {name!r}")
    return name


def _zone_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{1,8}", name):
        raise ValueError("must be the name of a zone as times write it, such as EST")
    return name


def _offset(text: str) -> str:
    if not re.fullmatch(r"[+-](0\d|1[0-8]):[0-5]\d", text):
        raise ValueError(f"must be an offset such as -05:00, not {text!r}")
    return text


def _csv_of_project(name: str) -> str:
    path = Path(name)
    if path.parent != Path("sources") or path.suffix != ".csv":
        proposed = f"sources/{path.stem or 'networks'}.csv"
        raise ValueError(f'must be a .csv file in sources/, named from the project on as in "{proposed}", not {name!r}')
    return name


class _Enrichment(BaseModel, extra="forbid"):
    by: Text
    file: Annotated[str, AfterValidator(_csv_of_project)]


Texts = Annotated[tuple[Text, ...], BeforeValidator(as_list), Field(min_length=1)]


class _SourceFile(BaseModel, extra="forbid"):
    """The keys of the file; their meaning is that of the attributes of `Source`."""

    title: Text
    owner: Address
    format: Annotated[tuple[Format, ...], BeforeValidator(as_list), Field(min_length=1), AfterValidator(_formats)]
    key: Text
    event_time: Text = ""
    columns: Columns = Field(alias="schema")
    optional: Columns = {}
    paths: Annotated[dict[ColumnName, Text], Field(alias="from")] = {}
    match_case: StrictBool = False
    enrich: dict[ColumnName, _Enrichment] = {}
    zone_offsets: dict[Annotated[str, AfterValidator(_zone_name)], Annotated[str, AfterValidator(_offset)]] = {}
    nulls: Texts = ()
    patterns: Annotated[Texts, Field(alias="pattern")] = ()
    ignore: Texts = ()
    pair_separator: Text = ""
    key_separator: Text = ""
    event_time_format: Text = ""
    time_zone: Annotated[str, AfterValidator(_time_zone)] = ""
    lateness: Duration = timedelta()
    max_ahead: Duration = timedelta()
    max_bytes: StrictInt = Field(default=1, ge=1, le=VALUE_BYTES)
    partitions: StrictInt = Field(default=1, ge=1, le=256)
    history_days: StrictInt = Field(default=1, ge=1, le=3650)
    silent_after: Duration = timedelta()
    schema_version: StrictInt = Field(default=1, ge=1, le=1_000_000)

    def fields(self, project: Path) -> dict[str, Any]:
        """Return what the file says as the fields of `Source`, which has the defaults; paths begin in `project`."""
        declared = {key: getattr(self, key) for key in self.model_fields_set - {"format"}}
        columns = {**self.columns, **self.optional, **dict.fromkeys(self.enrich, "string")}
        declared |= {"formats": self.format, "columns": columns, "optional": frozenset({*self.optional, *self.enrich})}
        files = {column: (lookup.by, project / lookup.file) for column, lookup in self.enrich.items()}
        enrich = {column: Enrichment(by=by, file=file, digest=digest_of(file)) for column, (by, file) in files.items()}
        return declared | {"enrich": enrich}


def read_source(path: Path) -> Source:
    """Read the source declared in `path`; ConfigError, where a retry does not help, with every fault of the file."""
    reader = _Reader(path)
    fields = reader.read()
    reader.raise_faults()
    return Source(name=path.stem, **fields)


def digest_of(path: Path) -> str:
    """Hash the file: 12 hex digits; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


class _Reader(TomlReader):
    def read(self) -> dict[str, Any]:
        """Read the fields of Source but its name; what must fit together is checked of all that is well on its own."""
        fields: dict[str, Any] = {}
        try:
            fields = _SourceFile.model_validate(self.table).fields(self.path.parent.parent)
        except ValidationError as error:
            self.faults += faults_of(error, self.path, _SourceFile, "a key of a source", self.line)
        wrong = {fault.key for fault in self.faults}
        values = {key: value for key, value in self.table.items() if key not in wrong}
        schema, optional = values.get("schema", {}), values.get("optional", {})
        forms = as_list(values.get("format", []))
        enrich = values.get("enrich", {})
        self.check_columns(schema, optional, enrich)
        self._check_enriched(
            {name: enrich[name] for name in enrich if _is_well(f"enrich.{name}", wrong)}, schema | optional
        )
        values |= {"formats": forms, "columns": schema | optional, "optional": optional}
        self._check_paths(values)
        self._check_patterns(values)
        self._check_keys_of_records(forms)
        self._check_references(values)
        return fields

    # --- what must fit together ---------------------------------------------------------------------------------------

    def _check_paths(self, values: dict[str, Any]) -> None:
        columns, forms = values["columns"], values["formats"]
        for column, path in values.get("from", {}).items():
            if column not in columns:
                self.fault(f"from.{column}", f"'{column}' is not a column", near=nearest(column, columns))
            elif path == RAW_RECORD and columns[column] != "string":
                self.fault(f"from.{column}", f"the column of the whole record ({RAW_RECORD}) must be a string")
            elif path != RAW_RECORD and list(forms) == [Format.REGEX]:
                what = f'is not for patterns, but for "{RAW_RECORD}", the whole record: name groups as columns'
                self.fault(f"from.{column}", what)

    def _check_patterns(self, values: dict[str, Any]) -> None:
        formats = values["formats"]
        if "pattern" not in self.table and Format.REGEX in formats:
            self.fault("pattern", "is missing; format regex needs it")
        for key, form in (("pattern", "regex"), ("pair_separator", "key-value"), ("key_separator", "key-value")):
            if key in self.table and form not in formats:
                self.fault(key, f"needs format {form}")
        for pattern in as_list(values.get("pattern", [])):
            self._check_groups(pattern, values)
        for pattern in as_list(values.get("ignore", [])):
            self._check_ignored(pattern)

    def _check_ignored(self, pattern: str) -> None:
        if broken := _unbalanced(pattern):
            self.fault("ignore", f"{pattern!r} is not a regular expression: {broken}")
        elif _is_in_any_text(pattern):
            self.fault("ignore", f"{pattern!r} is found in every record, so no event would be left")

    def _check_keys_of_records(self, forms: Any) -> None:
        event_time, why = self.table.get("event_time"), ""
        unused: tuple[str, ...] = ()
        if Format.EVENTS in forms:
            unused = ("event_time", "event_time_format", "time_zone", "zone_offsets", "max_bytes")
            unused += ("ignore", "nulls", "enrich", "from")
            why = "format events: a flow gives each event its time"
        elif event_time == APPENDED:
            unused = ("event_time_format", "time_zone", "zone_offsets", "max_ahead")
            why = f"event_time {APPENDED}, which is not read from a record"
        elif event_time is None:
            self.fault("event_time", "is missing")
        for key in unused:
            if key in self.table:
                self.fault(key, f"is not for {why}")

    def _check_enriched(self, enrich: dict[str, dict[str, str]], columns: dict[str, str]) -> None:
        for column, lookup in enrich.items():
            if lookup["by"] not in columns:
                what = f"by: '{lookup['by']}' is not a column of its records"
                self.fault(f"enrich.{column}", what, near=nearest(lookup["by"], columns))
            elif columns[lookup["by"]] != "string":
                self.fault(f"enrich.{column}", f"by: '{lookup['by']}' must be a string that holds an IP address")

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
            raw = {column for column, path in values.get("from", {}).items() if path == RAW_RECORD}
            for column in sorted(values["columns"].keys() - values["optional"] - groups.keys() - raw):
                self.fault("pattern", f"has no group for the column '{column}', which is not optional")

    def _check_references(self, values: dict[str, Any]) -> None:
        columns = values["columns"]
        for key in ("key", "event_time"):
            name = values.get(key)
            if name and (key, name) != ("event_time", APPENDED) and name not in columns:
                self.fault(key, f"'{name}' is not a column", near=nearest(name, columns))
            elif name in values["optional"]:
                self.fault(key, f"'{name}' may not be optional")
        form, kind = values.get("event_time_format") or "iso8601", columns.get(values.get("event_time"))
        letters = set() if form in _TIME_FORMATS else pattern_letters(form)
        if not _is_time_format(form):
            what = f"'{form}' is neither {', '.join(_TIME_FORMATS)} nor a pattern with month and day, as in {_EXAMPLE}"
            self.fault("event_time_format", what, near=nearest(form, _TIME_FORMATS))
        elif letters & set("hK") and "a" not in letters:
            self.fault("event_time_format", _NO_HALF)
        elif ("z" in letters) != bool(values.get("zone_offsets")):
            self.fault("event_time_format", _ZONE_NAMES if "z" in letters else _NO_ZONE_NAMES)
        elif "time_zone" in self.table and (form in EPOCHS or letters & _ZONE_LETTERS):
            self.fault("time_zone", f"is not for event_time_format {form}, which says the moment by itself")
        elif kind in ("int", "bigint", "double") and form not in EPOCHS:
            self.fault("event_time_format", f"a column of type {kind} needs {' or '.join(EPOCHS)}")
        elif kind == "boolean":
            self.fault("event_time", "a boolean cannot hold a time")


def _is_well(key: str, wrong: set[str | None]) -> bool:
    return not any(f"{wrong_key}.".startswith(f"{key}.") for wrong_key in wrong)


def _is_time_format(form: str) -> bool:
    """Return whether `form` is a name, or a Spark datetime pattern by which a day can be told."""
    letters = pattern_letters(form)
    # What a pattern lacks Spark takes for the first, as the month of yyyy-mm-dd and the minute of HH:MM:ss.
    has_day = "d" in letters if letters & set("ML") else {"y", "D"} <= letters
    has_minute = "m" in letters or "s" not in letters
    # Spark reads no weekday; that at the beginning is skipped.
    is_known = letters <= _PATTERN_LETTERS and "E" not in re.sub("^E+", "", form)
    return form in _TIME_FORMATS or (has_day and has_minute and is_known)


def _is_in_any_text(pattern: str) -> bool:
    try:
        return all(re.search(pattern, text) for text in _ANYTHING)
    except re.error:  # only Java knows it
        return False


def _unbalanced(pattern: str) -> str | None:
    """Find what is wrong with the brackets and repeats of `pattern`; None when nothing is.

    Python reads the pattern here and Java later: only faults that both have in common are told.
    """
    common: Iterable[str] = ("unterminated", "missing )", "unbalanced", "nothing to repeat", "bad character range")
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error) if any(text in str(error) for text in common) else None
    return None


_MADE_OF = ("source", "view", "topic", "file", "history")


class _TableFile(BaseModel, extra="forbid"):
    """The keys of the file; their meaning is that of the attributes of `TableSpec`."""

    title: Text
    owner: Address
    source: Text | None = None
    view: Text | None = None
    topic: Text | None = None
    file: Text | None = None
    history: Text | None = None
    sql: Text | None = None
    days: Annotated[StrictInt | None, Field(ge=1, le=3650)] = None
    key: Annotated[tuple[Text, ...], BeforeValidator(as_list), Field(min_length=1)]
    columns: Columns = Field(alias="schema")
    optional: Columns = {}
    settle: Duration = TableSpec.model_fields["settle"].default
    keep: Duration = TableSpec.model_fields["keep"].default
    max_rows: StrictInt = Field(default=TableSpec.model_fields["max_rows"].default, ge=1, le=2_000_000)


def read_table(path: Path) -> TableSpec:
    """Read the table declared in `path`; ConfigError, where a retry does not help, with every fault of the file."""
    reader = TomlReader(path)
    fields: dict[str, Any] = {}
    try:
        fields = dict(_TableFile.model_validate(reader.table))
    except ValidationError as error:
        reader.faults += faults_of(error, path, _TableFile, "a key of a table", reader.line)
    table = reader.table
    if len([key for key in _MADE_OF if key in table]) != 1:
        *first, last = [f'{key} = "..."' for key in _MADE_OF]
        reader.fault(None, f"needs exactly one of {', '.join(first)} and {last}: what it is made of")
    if fields:
        _check(reader, fields)
    reader.raise_faults()
    optional = fields["optional"]
    fields["days"] = fields["days"] or TableSpec.model_fields["days"].default
    fields |= {"columns": fields["columns"] | optional, "optional": frozenset(optional)}
    return TableSpec(name=path.stem, **fields)


def _check(reader: TomlReader, fields: dict[str, Any]) -> None:
    schema, optional = fields["columns"], fields["optional"]
    reader.check_columns(schema, optional)
    for name in fields["key"]:
        if name in optional:
            reader.fault("key", f"'{name}' may not be optional")
        elif name not in schema:
            reader.fault("key", f"'{name}' is not a column", near=nearest(name, schema))
    if fields["file"] is not None and Path(fields["file"]).suffix not in (".csv", ".jsonl"):
        reader.fault("file", "must be a file of the project that ends in .csv or .jsonl")
    if (fields["history"] is None) != (fields["sql"] is None):
        what = 'goes with history = "<source>": the query over the table `events` of its sealed days'
        reader.fault("history" if fields["sql"] is None else "sql", what if fields["sql"] else f"needs sql: {what}")
    if fields["history"] is None and fields["days"] is not None:
        reader.fault("days", "goes with history: of how many days the rows are made")
