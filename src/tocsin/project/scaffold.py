"""The text of a new file of a project: a source, a flow or a view that passes `tocsin check`, to be filled in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

from tocsin.model.errors import ConfigError
from tocsin.model.names import valid_name
from tocsin.model.source import Source

_FLOW = Template('''"""What $name makes of $source, in one line.

What it leaves out, and why:
"""

from pyspark.sql import DataFrame

from tocsin import flow


@flow(source="$source", to="$to", owner="$owner", stage="draft")
def flow(events: DataFrame) -> DataFrame:
    """Return the envelope of each event, and the columns of $to: $columns."""
    return events
''')
_VIEW = Template('''"""What the rows of $name say, in one line.

Who reads them, and for what:
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="$source", key="$key", window="1 minute", keep="7 days", owner="$owner", stage="draft")
def view(events: DataFrame) -> DataFrame:
    """Count the events of each $key in each minute."""
    return events.groupBy("window", "$key").agg(F.count("*").alias("count"))
''')
_SOURCE = Template("""title = "What $name is, in one line"
owner = "$owner"

# Guessed from $lines lines of a sample: look through all of it.
format = "$format"
key = "$key"  # decides the partition: who or what an event is about
event_time = "$event_time"
event_time_format = "$event_time_format"
lateness = "10 seconds"  # how much later than its time an event may come and still count

[schema]
$columns$optional""")


@dataclass(frozen=True, kw_only=True)
class SampleSchema:
    """What lines of a sample have in common.

    Attributes:
        lines: how many were looked at.
        format: "json", "key-value" or "logfmt".
        columns: those that every line has, and their types.
        optional: the others.
        key: one of `columns`, the most likely key.
        event_time, event_time_format: one of `columns`, and how it writes a time.
    """

    lines: int
    format: str
    columns: dict[str, str]
    optional: dict[str, str]
    key: str
    event_time: str
    event_time_format: str


def flow_text(name: str, source: Source, to: Source, owner: str) -> str:
    """Write a flow from `source` to `to`, which passes events on."""
    return _FLOW.substitute(name=name, source=source.name, to=to.name, owner=owner, columns=", ".join(to.columns))


def view_text(name: str, source: Source, owner: str) -> str:
    """Write a view that counts the events of each key of `source`."""
    return _VIEW.substitute(name=name, source=source.name, key=source.key, owner=owner)


def source_text(name: str, schema: SampleSchema, owner: str) -> str:
    """Write a source of lines with this `schema`."""
    columns, optional = (
        "".join(f'{column} = "{kind}"\n' for column, kind in part.items()) for part in (schema.columns, schema.optional)
    )
    more = f"\n[optional]  # missing or empty in some lines\n{optional}" if optional else ""
    fields = {key: getattr(schema, key) for key in ("lines", "format", "key", "event_time", "event_time_format")}
    return _SOURCE.substitute(fields, name=name, owner=owner, columns=columns, optional=more)


def write_new(path: Path, text: str) -> None:
    """Write `text` to `path`, which must not be there, and whose name must be one that can be declared.

    Raises:
        ConfigError: it is there, or has no valid name; nothing was written.
        OSError: it cannot be written.
    """
    if valid_name(path.stem) != path.stem:
        raise ConfigError.one(path, f"small letters, digits and _ only; call it {valid_name(path.stem)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError.one(path, "is there already, and was not changed") from None
