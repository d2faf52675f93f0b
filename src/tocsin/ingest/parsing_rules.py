"""Name the rules by which a record becomes an event or goes to quarantine: the reasons, and their version.

Pure: Spark applies the rules (`tocsin.ingest.spark.parse`), this module names them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path

from tocsin.declare.code.python_syntax import parse
from tocsin.declare.model.source import Source
from tocsin.quality.suites.row_rules import RowRule, digest

EARLIEST = datetime(1971, 1, 1, tzinfo=UTC)
"""An event time before it is a clock that was never set, not history."""

ORIGIN_HEADER = "tocsin-origin"
"""On replayed raw records: `<topic>/<partition>/<offset>` of the record that was replayed, which stays its identity."""

INGESTED_AT_HEADER = "tocsin-ingested-at"
"""On replayed raw records: the append time of the original, ISO 8601."""

BATCH_HEADER = "tocsin-batch"
"""On raw records that a sender may repeat: `<32 hex digits of a batch>/<index in it>`, the identity of the event."""

BATCH_PLACE = r"^([0-9a-f]{32})/([0-9]{1,9})$"
"""What that header must look like, for Java and Python; any other is none."""

BATCH = "batch:"
"""So the `raw_topic` of an event begins that came in a batch which its sender may repeat."""

REPLAYS_HEADER = "tocsin-replays"
"""On replayed raw records: how often this record has been replayed, as a decimal number."""


class Reason(StrEnum):
    """Why a record cannot be used. Reasons about one column carry its name: `missing:user_id`."""

    SET_ASIDE = "set_aside"
    """It ended the query of the ingest each time it was read, which is a defect of the platform."""
    NO_VALUE = "no_value"
    """The record has a null value."""
    EMPTY = "empty"
    """Nothing but whitespace."""
    TOO_LONG = "too_long"
    """More bytes than the source's max_bytes."""
    EVENT_TOO_LONG = "event_too_long"
    """As an event, in JSON, it would be longer than the events topic takes."""
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    """Not exactly one JSON object (truncated, an array, two objects, text behind the object)."""
    NOT_KEY_VALUE = "not_key_value"
    """No `key: value` pair in the line."""
    NOT_LOGFMT = "not_logfmt"
    """No `key=value` in the line, or quotes that are not closed."""
    NO_MATCH = "no_match"
    """The source's pattern does not match the whole record."""
    MISSING = "missing"
    """A column that is not optional is absent, null or empty."""
    WRONG_TYPE = "wrong_type"
    """The text of a column is no value of its type."""
    TIME_AHEAD = "time_ahead"
    """The event time is more than the source's max_ahead after the append time."""
    TIME_TOO_OLD = "time_too_old"
    """The event time lies before 1971."""
    BAD_REPLAY_HEADER = "bad_replay_header"
    """The headers that a replay sets are incomplete or contradict the record."""
    RULE = "rule"
    """A critical rule of `expectations/<source>.rows.json` is broken; its name follows: `rule:known_action`."""


def reason_class(reason: str) -> str:
    """Cut the column off `reason`: `missing` of `missing:user_id`."""
    return reason.partition(":")[0]


def rule_parts(source: Source, expected: Iterable[RowRule] = ()) -> dict[str, str]:
    """Fingerprint the parts of the rules of `source` in 8 hex digits each, so that a replay can say which one changed.

    They are `format`, `schema`, `event_time`, `limits` (what the source's file declares), `expectations` (what is
    expected of its events) and `parser` (the code that applies all of it, without comments and docstrings).
    """
    schema = [list(source.columns.items()), sorted(source.optional), source.key, source.schema_version]
    schema += [sorted(source.paths.items()), source.match_case]
    parts: dict[str, object] = {
        "format": (
            sorted(source.formats),
            source.patterns,
            source.pair_separator,
            source.key_separator,
            source.ignore,
            source.nulls,
        ),
        "schema": [*schema, [(name, lookup.by, lookup.digest) for name, lookup in source.enrich.items()]],
        "event_time": (
            source.event_time,
            source.event_time_format,
            source.time_zone,
            source.max_ahead.total_seconds(),
            sorted(source.zone_offsets.items()),
        ),
        "limits": source.max_bytes,
    }
    digests = {name: _digest(repr(part)) for name, part in parts.items()}
    digests |= {"expectations": digest(expected), "parser": _parser()}
    return {name: of[:8] for name, of in digests.items()}


def rules_version(parts: dict[str, str]) -> str:
    """Digest to 12 hex digits all parts of `rule_parts` together."""
    return _digest(repr(sorted(parts.items())))[:12]


@cache
def _parser() -> str:
    folder = Path(__file__).parent
    modules = (
        "spark/parse.py",
        "spark/event_times.py",
        "line_forms.py",
        "time_patterns.py",
    )
    return _digest("".join(_code(folder / name) for name in modules))


def _code(path: Path) -> str:
    tree = parse(path.read_text(encoding="utf-8"))
    # Where a name comes from is no rule: a module that moves changes no version.
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
