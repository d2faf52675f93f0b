"""Read `tables/<name>.toml`: all faults of a file at once, each with its line, its key and the nearest valid name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, StrictInt, ValidationError

from tocsin.declare.model.errors import nearest
from tocsin.declare.model.table import TableSpec
from tocsin.declare.validation import Address, Columns, Duration, Text, TomlReader, as_list, faults_of

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
