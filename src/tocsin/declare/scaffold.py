"""The text of a new file of a project: a source, a flow, a view or a detector that passes `tocsin check`."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import valid_name
from tocsin.declare.model.source import Format, Source

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
_DETECTOR = Template('''"""What is unusual in $source, in one line.

Catches: a $key with more than $email events in a minute.
Misses: what it cannot see.
When it fires, look first at: where to look.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@detector(
    source="$source",
    entity="$key",
    window="1 minute",
    levels=Levels(email=$email, urgent=$urgent),  # $why
    owner="$owner",
    runbook="$runbook",
    stage="draft",  # then "shadow", which stores findings and notifies nobody, and then "live"
)
def detect(events: DataFrame) -> DataFrame:
    # Leave out first what is usual, by events.where("..."). It has the columns $columns.
    return events.groupBy("window", "$key").agg(
        F.count("*").alias("score"),
        F.max("event_time").alias("event_time_max"),
    )


CASES = [
    Case(
        "$many events of one $key within a minute",
        events=at("12:00:00", $key=$value).repeat($many, every="100 ms"),
        expect=[email($key=$value, window="12:00:00", score=$many)],
    ),
    Case(
        "a few events",
        events=at("12:00:00", $key=$value).repeat(3, every="10 seconds"),
        expect=[],
    ),
]
''')
_RUNBOOK = Template("""# Runbook: $name

**Fires when** one $key has more than $email events (e-mail) or more than $urgent (urgent) within a minute.

## First five minutes

1. Open the alert: `tocsin alerts <id>`. Note the $key, the window and the score.
2. Where to look next, and how to tell a real problem from a harmless one.

## Usual harmless causes

- What else looks like it.

## If it should not have fired

Tell the detector's owner. Limits and window stand in `detectors/$name.py`.
""")
_SOURCE = Template("""title = "What $name is, in one line"
owner = "$owner"

# Guessed from $lines lines of a sample: look through all of it.
format = "$format"
${pattern}key = "$key"  # decides the partition: who or what an event is about
event_time = "$event_time"
event_time_format = "$event_time_format"
${match_case}lateness = "10 seconds"  # how much later than its time an event may come and still count

[schema]
$columns$optional""")
_LOWEST_LIMIT, _HIGHEST_LIMIT = 20, 300
_SAMPLES = {"string": '"example"', "int": "1", "bigint": "1", "boolean": "True"}
"""An entity for the cases of a draft; none of the sample, whose values may be about people."""


@dataclass(frozen=True, kw_only=True)
class SampleSchema:
    """What lines of a sample have in common.

    Attributes:
        pattern: of format "regex", without an apostrophe.
        unread: lines in which no time was found, or which the pattern does not match.
        busiest: most events of one key within a minute.
    """

    lines: int
    format: str
    columns: dict[str, str]
    optional: dict[str, str]
    key: str
    event_time: str
    event_time_format: str
    pattern: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    goes_on: bool = False
    match_case: bool = False
    has_zone: bool = True
    unread: int = 0
    busiest: int = 0


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
    paths = "".join(f"{column} = {json.dumps(path, ensure_ascii=False)}\n" for column, path in schema.paths.items())
    more += f"\n[from]  # what the field of a column is called in the record\n{paths}" if paths else ""
    more += "".join(f"\n# Left out: {text}" for text in schema.left_out) + ("\n" if schema.left_out else "")
    fields = {key: getattr(schema, key) for key in ("lines", "format", "key", "event_time", "event_time_format")}
    fields["match_case"] = "match_case = true  # fields whose names differ only by case\n" if schema.match_case else ""
    fields["pattern"] = f"pattern = '{schema.pattern}'\n" if schema.pattern else ""
    return _SOURCE.substitute(fields, name=name, owner=owner, columns=columns, optional=more)


def sampled_source(name: str, schema: SampleSchema) -> Source:
    """Make the source that `source_text` writes."""
    forms = {"formats": (Format(schema.format),), "columns": schema.columns | schema.optional}
    fields = {key: getattr(schema, key) for key in ("key", "event_time", "event_time_format", "paths", "match_case")}
    return Source(name=name, title="", owner="", optional=frozenset(schema.optional), **forms, **fields)


def detector_files(name: str, source: Source, owner: str, busiest: int = 0) -> dict[str, str]:
    """Write a detector that counts the events of each key of `source`, with cases, and its runbook; by their places.

    `busiest` is the number of events of one key in a minute that is usual, as far as is known. ConfigError if the key
    of `source` is no entity that a case can name.
    """
    key, kind = source.key, source.columns[source.key]
    if kind not in _SAMPLES or keyword.iskeyword(key) or key in ("score", "window"):
        what = (
            f"'{key}' ({kind}) cannot be what a detector counts by; choose another column, who or what an event is of"
        )
        raise ConfigError.one(f"sources/{source.name}.toml", what, key="key")
    limit = min(max(busiest, _LOWEST_LIMIT), _HIGHEST_LIMIT)
    why = f"the sample has up to {busiest} events of one {key} in a minute" if busiest else "strictly above; a guess"
    runbook = f"docs/runbooks/{name}.md"
    fields: dict[str, object] = {"name": name, "source": source.name, "key": key, "owner": owner, "runbook": runbook}
    fields |= {"email": limit, "urgent": 2 * limit, "many": limit + 1, "why": why, "value": _SAMPLES[kind]}
    fields["columns"] = ", ".join(source.columns)
    return {f"detectors/{name}.py": _DETECTOR.substitute(fields), runbook: _RUNBOOK.substitute(fields)}


def write_new(project: Path, files: Mapping[str, str]) -> None:
    """Write `files`, texts by their places in `project`; none may be there, and each name be one that can be declared.

    ConfigError, and nothing was written, if one is there or has no valid name; OSError if one cannot be written.
    """
    paths = {project / place: text for place, text in files.items()}
    for path in paths:
        if valid_name(path.stem) != path.stem:
            raise ConfigError.one(path, f"small letters, digits and _ only; call it {valid_name(path.stem)}")
        if path.exists():
            raise ConfigError.one(path, "is there already, and was not changed")
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
