"""Read `sources/<name>.toml`: all faults of a file at once, each with its line, its key and the nearest valid name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictInt, ValidationError

from tocsin.model.errors import nearest
from tocsin.model.sizes import VALUE_BYTES
from tocsin.model.source import EPOCHS, Format, Source, numbered_groups
from tocsin.project.validation import Address, Columns, Duration, Text, TomlReader, as_list, faults_of

_EXAMPLE = "yyyy-MM-dd HH:mm:ss"
_PATTERN_LETTERS = set("GyMLdDQqEaFhKkHmsSVzOXxZ")


def _formats(formats: tuple[Format, ...]) -> tuple[Format, ...]:
    if Format.EVENTS in formats and len(formats) > 1:
        raise ValueError("must be events alone: a flow writes them, in no other form")
    if len(set(formats)) != len(formats) or len(set(formats) - {Format.JSON}) > 1:
        raise ValueError("must be one format, or json with one other")
    return formats


class _SourceFile(BaseModel, extra="forbid"):
    """The keys of the file; their meaning is that of the attributes of `Source`."""

    title: Text
    owner: Address
    format: Annotated[tuple[Format, ...], BeforeValidator(as_list), Field(min_length=1), AfterValidator(_formats)]
    key: Text
    event_time: Text = ""
    columns: Columns = Field(alias="schema")
    optional: Columns = {}
    pattern: Text = ""
    pair_separator: Text = ""
    key_separator: Text = ""
    event_time_format: Text = ""
    lateness: Duration = timedelta()
    max_ahead: Duration = timedelta()
    max_bytes: StrictInt = Field(default=1, ge=1, le=VALUE_BYTES)
    partitions: StrictInt = Field(default=1, ge=1, le=256)
    history_days: StrictInt = Field(default=1, ge=1, le=3650)
    silent_after: Duration = timedelta()
    schema_version: StrictInt = Field(default=1, ge=1, le=1_000_000)

    def fields(self) -> dict[str, Any]:
        """Return what the file says as the fields of `Source`; the model of a source has the defaults."""
        declared = {key: getattr(self, key) for key in self.model_fields_set - {"format"}}
        columns = {**self.columns, **self.optional}
        return declared | {"formats": self.format, "columns": columns, "optional": frozenset(self.optional)}


def read_source(path: Path) -> Source:
    """Read the source declared in `path`.

    Raises:
        ConfigError: with every fault of the file. A retry does not help.
    """
    reader = _Reader(path)
    fields = reader.read()
    reader.raise_faults()
    return Source(name=path.stem, **fields)


class _Reader(TomlReader):
    def read(self) -> dict[str, Any]:
        """Read the fields of Source but its name; what must fit together is checked of all that is well on its own."""
        fields: dict[str, Any] = {}
        try:
            fields = _SourceFile.model_validate(self.table).fields()
        except ValidationError as error:
            self.faults += faults_of(error, self.path, _SourceFile, "a key of a source", self.line)
        wrong = {fault.key for fault in self.faults}
        values = {key: value for key, value in self.table.items() if key not in wrong}
        schema, optional = values.get("schema", {}), values.get("optional", {})
        forms = as_list(values.get("format", []))
        self.check_columns(schema, optional)
        values |= {"formats": forms, "columns": schema | optional, "optional": optional}
        self._check_pattern(values)
        self._check_keys_of_records(forms)
        self._check_references(values)
        return fields

    # --- what must fit together ---------------------------------------------------------------------------------------

    def _check_pattern(self, values: dict[str, Any]) -> None:
        formats, pattern = values["formats"], values.get("pattern")
        if "pattern" not in self.table and Format.REGEX in formats:
            self.fault("pattern", "is missing; format regex needs it")
        for key, form in (("pattern", "regex"), ("pair_separator", "key-value"), ("key_separator", "key-value")):
            if key in self.table and form not in formats:
                self.fault(key, f"needs format {form}")
        if pattern:
            self._check_groups(pattern, values)

    def _check_keys_of_records(self, forms: Any) -> None:
        if Format.EVENTS in forms:
            for key in ("event_time", "event_time_format", "max_bytes"):
                if key in self.table:
                    self.fault(key, "is not for format events: a flow gives each event its time")
        elif "event_time" not in self.table:
            self.fault("event_time", "is missing")

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


def _is_time_format(form: str) -> bool:
    """Return whether `form` is a name, or a Spark datetime pattern that has a year (without one, Spark takes 1970)."""
    letters = re.sub(r"'[^']*'", "", form)
    pattern = "y" in letters and all(c in _PATTERN_LETTERS for c in letters if c.isalpha())
    return form in ("iso8601", *EPOCHS) or pattern


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
