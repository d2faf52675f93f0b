"""Raw records to typed columns and reasons, in Spark expressions alone: real-time mode takes no Python.

Every record is parsed once. All forms become two arrays, keys and values, in which the first occurrence of a key
counts; what follows is the same for all of them. Nothing here raises for a bad record: what cannot be read is null, and
has a reason (`tocsin.ingest.parsing_rules`). Expressions are chosen so that Spark generates code for them; higher-order
functions, which it interprets, are avoided.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.durations import spark_interval
from tocsin.declare.model.source import RAW_RECORD, Format, Source, numbered_groups
from tocsin.ingest.line_forms import (
    BLANK,
    ESCAPED,
    LOGFMT_PAIR,
    LONE_SURROGATE,
    SYSLOG_COLUMNS,
    SYSLOG_HEADER,
    UNIT,
    WHOLE_QUOTED,
    known_names,
)
from tocsin.ingest.network_ranges import KEY_BYTES, read_ranges
from tocsin.ingest.parsing_rules import EARLIEST, Reason
from tocsin.ingest.spark.event_times import add_event_time, placed, read_time
from tocsin.quality.suites.row_rules import RowRule

_NUMBERS = ("int", "bigint", "double")
_UNREAD = {
    Format.KEY_VALUE: Reason.NOT_KEY_VALUE,
    Format.LOGFMT: Reason.NOT_LOGFMT,
    Format.REGEX: Reason.NO_MATCH,
}
_BETWEEN = f"\0{secrets.token_hex(16)}\0"
"""Stands between groups of a match; occurs in no record, since nobody can know it."""

_DECIMAL = r"^\s*[+-]?[0-9.]+([eE][+-]?[0-9]+)?\s*$"
_KEY = "[A-Za-z_][A-Za-z0-9_.-]*"


def parsed(records: DataFrame, source: Source, rules: Sequence[RowRule] = ()) -> DataFrame:
    """Parse `records` of `source` into everything that is known about them.

    They are as Spark's Kafka source gives them, with headers; key, value and headers may be null. A critical one of
    `rules` that is broken is a reason, another one a warning. Returned are the columns of `records` and:

    `raw_topic`, `raw_partition`, `raw_offset`, `ingested_at`: identity and append time; of a replay, the original's.
    `batch`, `batch_index`: null unless the record came in a batch that its sender may repeat.
    `replays`: int. `event_time`: timestamp, null if unreadable. `columns`: struct of the declared columns.
    `unknown`, `repeated`: how many fields were not declared, or occurred again; null if it has none.
    `reasons`: text, separated by commas; empty for a good record. `warnings`: names of rules that warn, likewise.
    `ignored`: a pattern to ignore is found in it, so nothing else is read.
    """
    read = placed(records).withColumns({"text": _text(source)}).withColumns({"ignored": _is_ignored(source)})
    read = read.withColumns({"text": F.when(~F.col("ignored"), F.col("text"))})
    written = [name for name in source.columns if name not in source.enrich]
    found = {f"f_{name}": value_at(source.field_of(name), source) for name in written}
    fields = _fields(read.withColumns({"is_json": _is_json(source)}), source).withColumns(found)
    fields = _as_written(fields, list(found), source)
    fields = fields.withColumns({f"t_{name}": _value(name, source) for name in written})
    fields = add_enriched(fields, source)
    timed = add_event_time(fields, source)
    typed = timed.withColumns({f"c_{name}": _typed(name, source) for name in source.columns})
    known = F.array(*[F.lit(name) for name in known_names(source)])
    reasons = [*_record_reasons(source), *_column_reasons(source), *_time_reasons(source)]
    reasons += _broken([rule for rule in rules if rule.refuses], source, f"{Reason.RULE}:")
    return typed.select(
        *records.columns,
        *["raw_topic", "raw_partition", "raw_offset", "ingested_at", "batch", "batch_index", "replays", "event_time"],
        F.struct(*[F.col(f"c_{name}").alias(name) for name in source.columns]).alias("columns"),
        F.size(F.array_except(names_of(source), known)).alias("unknown"),
        (F.size("keys") - F.size(F.array_distinct("keys"))).alias("repeated"),
        F.when(F.col("ignored"), F.lit("")).otherwise(F.concat_ws(",", *reasons)).alias("reasons"),
        "ignored",
        F.concat_ws(",", *_broken([rule for rule in rules if rule.warns], source)).alias("warnings"),
    )


# --- the text and its fields ------------------------------------------------------------------------------------------


def _text(source: Source) -> Column:
    """Read the record as text; null when it is null, too long or not UTF-8."""
    text = F.btrim(F.try_validate_utf8(F.col("value").cast("string")), F.lit(BLANK))
    return F.when(F.octet_length("value") <= source.max_bytes, text)


def _is_ignored(source: Source) -> Column:
    found = [F.col("text").rlike(pattern) for pattern in source.ignore]
    return F.coalesce(reduce(or_, found), F.lit(False)) if found else F.lit(False)


def _is_json(source: Source) -> Column:
    if source.formats == (Format.JSON,):
        return F.lit(True)
    return F.coalesce(F.col("text").startswith("{"), F.lit(False)) if Format.JSON in source.formats else F.lit(False)


def _fields(read: DataFrame, source: Source) -> DataFrame:
    """`keys` and `values`, arrays of text of equal length; null when the record does not have the form."""
    text, keys, values = F.col("text"), F.lit(None).cast("array<string>"), F.lit(None).cast("array<string>")
    if Format.KEY_VALUE in source.formats:
        pattern = F.lit(_key_value_pattern(source))
        keys, values = (F.regexp_extract_all(text, pattern, F.lit(group)) for group in (1, 2))
    if Format.LOGFMT in source.formats:
        read = read.withColumn("fields_text", F.regexp_replace(text, SYSLOG_HEADER, ""))
        pair = F.lit(LOGFMT_PAIR)
        keys, values = (F.regexp_extract_all("fields_text", pair, F.lit(group)) for group in (1, 2))
    if Format.REGEX in source.formats:
        read = read.withColumn("matched", _matched(text, source))
        keys, values = _groups(source)
    if Format.JSON in source.formats:
        read = read.withColumn("objects", F.when(F.col("is_json") & (text != ""), json_objects(text)))
        object_ = F.when(F.size("objects") == 1, F.get("objects", F.lit(0)))
        read = read.withColumn("object", object_)
        keys = F.when(F.col("is_json"), F.map_keys("object")).otherwise(keys)
        values = F.when(F.col("is_json"), F.map_values("object")).otherwise(values)
    found = read.withColumns({"keys": keys, "values": values})
    # An empty object is an object whose columns are missing; a line without any pair is no key-value line.
    is_read = (F.size("keys") > 0) | (F.col("keys").isNotNull() & F.col("is_json"))
    if Format.LOGFMT in source.formats:
        last = F.get("values", F.size("values") - 1)
        is_read &= F.col("is_json") | ~last.startswith('"') | last.rlike(WHOLE_QUOTED)
    return add_objects(found.withColumn("is_read", F.coalesce(is_read, F.lit(False))), source)


def _key_value_pattern(source: Source) -> str:
    """One `key: value` pair: group 1 is the key, group 2 the value, which ends before the next pair or with the line.

    A separator that no key follows belongs to the value, as in `message: a | b`. The possessive quantifiers (`*+`) keep
    Java's matcher from trying each length in turn, and from recursing on a long value.
    """
    separator = source.pair_separator.lstrip() or source.pair_separator
    mark, rest = re.escape(separator[0]), re.escape(separator[1:])
    bare = source.key_separator.rstrip() or source.key_separator
    colon = re.escape(bare) + ("" if bare == source.key_separator else r"(?=\s|\z)")
    value = rf"[^{mark}]*+(?:{mark}(?!{rest}{_KEY}{colon})[^{mark}]*+)*+"
    return rf"(?:\A|{mark}{rest})({_KEY}){colon}({value})"


def _matched(text: Column, source: Source) -> Column:
    """Match the source's patterns, the first first; `text` where none does, null where the matcher gives up.

    Java's matcher recurses on some patterns, and an overflow of the stack inside `rlike` ends the JVM. Called through
    reflection it is an exception like any other, which `try_reflect` turns into null. One call for all groups takes
    half the time of `rlike` and a `regexp_extract` for each (ADR 0017).

    A match is replaced by the number of its pattern and the groups, each after `_BETWEEN`.
    """
    for number, pattern in enumerate(source.patterns):
        plain, names = numbered_groups(pattern)
        groups = "".join(f"{_BETWEEN}${group}" for group in names.values())
        unread = rf"\A(?!{_BETWEEN})(?:{plain})\z"
        arguments = (text, F.lit(unread), F.lit(f"{_BETWEEN}{number}{groups}"))
        text = F.try_reflect(F.lit("org.apache.commons.lang3.RegExUtils"), F.lit("replaceFirst"), *arguments)
    return text


def _groups(source: Source) -> tuple[Column, Column]:
    matched = F.col("matched")
    parts, matches = F.split(matched, _BETWEEN), matched.startswith(_BETWEEN)
    names = [F.array(*map(F.lit, numbered_groups(pattern)[1])) for pattern in source.patterns]
    keys = F.get(F.array(*names), F.get(parts, F.lit(1)).cast("int"))
    return F.when(matches, keys), F.when(matches, F.slice(parts, 3, F.size(parts)))


def _value(name: str, source: Source) -> Column:
    """Take the text of column `name`: null when it is absent or null, and for the key column when it is blank.

    Outside JSON, where nothing quotes a value or says null, whitespace around it goes and an empty one is null.
    """
    if source.field_of(name) == RAW_RECORD:
        return F.col("text")
    text = F.col(f"f_{name}")
    if Format.LOGFMT in source.formats:
        text = _plain_or_json(_logfmt_value(name, text, source), text, source)
    text = F.when(~F.btrim(text, F.lit(BLANK)).isin(*source.nulls), text) if source.nulls else text
    trimmed = F.btrim(text, F.lit(BLANK))
    bare = F.when(trimmed != "", trimmed)
    quoted = F.when(trimmed != "", text) if name == source.key else text
    return quoted if source.formats == (Format.JSON,) else _plain_or_json(bare, quoted, source)


def _plain_or_json(plain: Column, json: Column, source: Source) -> Column:
    return F.when(F.col("is_json"), json).otherwise(plain) if Format.JSON in source.formats else plain


def _logfmt_value(name: str, written: Column, source: Source) -> Column:
    """Take the value of column `name` of a logfmt line, of which `written` is the text behind `=`."""
    if source.field_of(name) in SYSLOG_COLUMNS:
        group = F.regexp_extract("text", SYSLOG_HEADER, SYSLOG_COLUMNS.index(source.field_of(name)) + 1)
        return F.nullif(group, F.lit("-"))
    inner = F.substr(written, F.lit(2), F.length(written) - 2)
    value = F.when(written.rlike(WHOLE_QUOTED), F.regexp_replace(inner, ESCAPED, "$1")).otherwise(written)
    return F.regexp_replace(value, UNIT, "") if source.columns[name] in _NUMBERS else value


# --- types and times --------------------------------------------------------------------------------------------------


def _typed(name: str, source: Source) -> Column:
    text, kind = F.col(f"t_{name}"), source.columns[name]
    if kind == "string":
        return text
    if kind == "timestamp":
        return F.col("event_time") if name == source.event_time else read_time(text, "iso8601")
    if kind == "double":  # to Java `7d` and `0x1p3` are numbers, too
        value = F.when(text.rlike(_DECIMAL), text).try_cast(kind)
        return F.when(F.abs(value) < float("inf"), value)
    return text.try_cast(kind)


# --- reasons ----------------------------------------------------------------------------------------------------------


def _record_reasons(source: Source) -> list[Column]:
    value, text = F.col("value"), F.col("text")
    long = F.octet_length(value) > source.max_bytes
    unread = text.isNotNull() & (text != "") & ~F.col("is_read")
    plain = next((_UNREAD[form] for form in source.formats if form in _UNREAD), Reason.NOT_JSON)
    return [
        F.when(value.isNull(), F.lit(Reason.NO_VALUE)),
        F.when(long, F.lit(Reason.TOO_LONG)),
        F.when(value.isNotNull() & ~long & text.isNull(), F.lit(Reason.NOT_UTF8)),
        F.when(text == "", F.lit(Reason.EMPTY)),
        F.when(unread & F.col("is_json"), F.lit(Reason.NOT_JSON)),
        F.when(unread & ~F.col("is_json"), F.lit(plain)),
        F.when(~F.col("replay_ok"), F.lit(Reason.BAD_REPLAY_HEADER)),
    ]


def _column_reasons(source: Source) -> list[Column]:
    read = F.col("is_read")
    reasons = []
    for name, kind in source.columns.items():
        text, value = F.col(f"t_{name}"), F.col(f"c_{name}")
        if name not in source.optional:
            reasons.append(F.when(read & text.isNull(), F.lit(f"{Reason.MISSING}:{name}")))
        if kind != "string" or name == source.event_time:
            unreadable = value.isNull() | (F.col("event_time").isNull() if name == source.event_time else F.lit(False))
            reasons.append(F.when(text.isNotNull() & unreadable, F.lit(f"{Reason.WRONG_TYPE}:{name}")))
    return reasons


def _time_reasons(source: Source) -> list[Column]:
    latest = F.col("ingested_at") + F.expr(f"INTERVAL {spark_interval(source.max_ahead)}")
    return [
        F.when(F.col("event_time") > latest, F.lit(Reason.TIME_AHEAD)),
        F.when(F.col("event_time") < F.lit(EARLIEST), F.lit(Reason.TIME_TOO_OLD)),
    ]


def _broken(rules: Sequence[RowRule], source: Source, before: str = "") -> list[Column]:
    """Name the rules that a record breaks, with `before` in front; null for those that it keeps."""

    def refer(column: str) -> str:
        return f"`c_{column}`" if column in source.columns else f"`{column}`"

    return [F.when(F.col("is_read") & F.expr(rule.broken(refer)), F.lit(f"{before}{rule.name}")) for rule in rules]


_MARK = secrets.token_hex(8)
"""Stands before each number; occurs in no record, since nobody can know it."""

_OPTIONS = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
# Possessive quantifiers: Java's matcher would recurse on a long text, or try each length in turn. A number that no JSON
# has stays as it is, and so does one before a colon: neither may become a text, which would be valid there.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+(?=[ \t\r\n]*+(?:[,\]}]|\z))"
_NEXT_NUMBER = rf'(?s)\G((?:[^"0-9-]++|{_STRING}|(?!{_NUMBER})(?:-|[0-9]++))*+)({_NUMBER})'
_SURROGATE = r"\\uD[89AB][0-9A-F]{2}"
_OTHER_ESCAPE = rf"\\(?!uD[89AB][0-9A-F]{{2}}\\uD[C-F])(?<!{_SURROGATE}\\(?=uD[C-F]))"


def json_objects(text: Column) -> Column:
    """Read `text` as objects, maps of text: one, unless the record is none; null if it is no JSON.

    As an element of an array, a second object or text behind the first is an error; alone, it would be ignored.
    """
    has_halves = text.contains(r"\ud") | text.contains(r"\uD")
    whole = F.when(has_halves, F.regexp_replace(text, LONE_SURROGATE, r"$1\\ufffd")).otherwise(text)
    return F.from_json(F.concat(F.lit("["), _marked(whole), F.lit("]")), "array<map<string,string>>", _OPTIONS)


def _as_written(read: DataFrame, names: Sequence[str], source: Source) -> DataFrame:
    """Turn the columns `names`, values of `json_objects`, into what stands in the record; nested ones without blanks.

    In two steps, since each batch is planned anew, and a plan holds an expression once for each place that names it.
    """
    if Format.JSON not in source.formats:
        return read
    # Two backslashes before a u: some text holds such an escape as its own, which must stay.
    may_hold_escapes = F.col("is_json") & ~F.col("text").contains(r"\\uD")

    def unmark(value: Column) -> Column:
        return F.when(value.contains(_MARK), F.regexp_replace(value, f'"?{_MARK}([^"]*+)"?', "$1")).otherwise(value)

    def join(value: Column) -> Column:
        return F.when(may_hold_escapes & value.rlike(_SURROGATE), _joined_surrogates(value)).otherwise(value)

    for change in (unmark, join):
        read = read.withColumns({name: change(F.col(name)) for name in names})
    return read


def add_objects(read: DataFrame, source: Source) -> DataFrame:
    """Add the objects that paths of `source` lead through, each as `keys`, `values` and `names` with its number.

    Those of the record itself have no number, and `keys` and `values` of it stand in `read`.
    """
    read = read.withColumns(_compared("", source))
    for number, prefix in enumerate(_prefixes(source)):
        value = value_at(prefix, source)
        value = F.when(value.contains(_MARK), value).otherwise(_marked(value))  # a text may hold an object, too
        read = read.withColumn(f"object{number}", F.from_json(value, "map<string,string>", _OPTIONS))
        object_ = F.col(f"object{number}")
        read = read.withColumns({f"keys{number}": F.map_keys(object_), f"values{number}": F.map_values(object_)})
        read = read.withColumns(_compared(str(number), source))
    return read


def value_at(path: str, source: Source) -> Column:
    """Take the value at `path`: of the field of that name first, then of fields within fields."""
    within = [(number, prefix) for number, prefix in enumerate(_prefixes(source)) if path.startswith(f"{prefix}.")]
    inner = [_field(str(number), path[len(prefix) + 1 :], source) for number, prefix in within]
    return F.coalesce(_field("", path, source), *inner)


def names_of(source: Source) -> Column:
    """Take the names of the record's fields, as they are compared."""
    return F.col("keys" if source.match_case else "names")


def _marked(text: Column) -> Column:
    return F.regexp_replace(text, _NEXT_NUMBER, f'$1"{_MARK}$2"')


def _joined_surrogates(value: Column) -> Column:
    """Read the escapes of pairs of surrogates in nested JSON, and no other escapes."""
    pairs = F.replace(value, F.lit(r"\\"), F.lit(_MARK))
    others = F.replace(F.regexp_replace(pairs, _OTHER_ESCAPE, r"\\\\"), F.lit('"'), F.lit(r"\""))
    joined = F.get(F.from_json(F.concat(F.lit('["'), others, F.lit('"]')), "array<string>", _OPTIONS), F.lit(0))
    return F.replace(joined, F.lit(_MARK), F.lit(r"\\"))


def _prefixes(source: Source) -> list[str]:
    """List the objects that paths lead through, the outer first: `a` and `a.b` of `a.b.c`."""
    paths = [source.field_of(name) for name in source.columns if name not in source.enrich]
    names = [path.split(".") for path in paths if Format.JSON in source.formats]
    found = {tuple(path[:count]) for path in names if all(path) for count in range(1, len(path))}
    return [".".join(prefix) for prefix in sorted(found, key=lambda prefix: (len(prefix), prefix))]


def _compared(number: str, source: Source) -> dict[str, Column]:
    """Make `names`, the keys in small letters, unless case tells them apart."""
    if source.match_case:
        return {}
    joined = F.lower(F.array_join(f"keys{number}", _MARK))
    return {f"names{number}": F.when(F.size(f"keys{number}") > 0, F.split(joined, _MARK))}


def _field(number: str, name: str, source: Source) -> Column:
    """Take the first value of the field `name` of an object, or else of one whose name differs only by case."""
    place = F.array_position(f"keys{number}", name)
    if not source.match_case:
        place = F.when(place > 0, place).otherwise(F.array_position(f"names{number}", name.lower()))
    return F.get(F.col(f"values{number}"), place.cast("int") - 1)


_V4 = r"^(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}\z"
_V6 = r"^(?=[0-9a-fA-F.]*:)[0-9a-fA-F:][0-9a-fA-F:.]{1,44}\z"
"""Java takes a text with a colon for an address or for nothing, and never asks the network for it."""

_INDEX_BYTES = 4
_RECORD = KEY_BYTES + _INDEX_BYTES


def add_enriched(fields: DataFrame, source: Source) -> DataFrame:
    """Add the text `t_<column>` of each column of `source` that is looked up; null where nothing is known.

    ConfigError, where a retry does not help, if a file of networks has faults.
    """
    return fields.withColumns({
        f"t_{column}": _let(_key(F.col(f"t_{lookup.by}")), _search(*_table(lookup.file, column, lookup.digest)))
        for column, lookup in source.enrich.items()
    })  # fmt: skip


@lru_cache(maxsize=4)
def _table(file: Path, column: str, digest: str) -> tuple[bytes, tuple[str, ...]]:
    """Make a record for each range of a file, the key of its start and the number of its value; and list the values.

    The `digest` tells a changed file from the one before.
    """
    ranges = read_ranges(file, column)
    numbers: dict[str | None, int] = {None: 0}
    for value in ranges.values:
        numbers.setdefault(value, len(numbers))
    records = (
        start + numbers[value].to_bytes(_INDEX_BYTES) for start, value in zip(ranges.starts, ranges.values, strict=True)
    )
    return b"".join(records), tuple(str(value) for value in numbers if value is not None)


def _search(table: bytes, values: tuple[str, ...]) -> Callable[[Column], Column]:
    count = len(table) // _RECORD
    records = F.lit(bytearray(table))
    steps = F.array(*[F.lit(1 << power) for power in reversed(range(count.bit_length()))])
    known = F.split(F.lit("\0".join(values)), "\0")

    def find(key: Column) -> Column:
        def halve(place: Column, step: Column) -> Column:
            start = F.substr(records, (place + step) * _RECORD + 1, F.lit(KEY_BYTES))
            return F.when((place + step < count) & (start <= key), place + step).otherwise(place)

        place = F.aggregate(steps, F.lit(0), halve)
        number = F.substr(records, place * _RECORD + KEY_BYTES + 1, F.lit(_INDEX_BYTES))
        return F.get(known, F.conv(F.hex(number), 16, 10).cast("int") - 1)

    return find


def _key(address: Column) -> Column:
    """Make the key of an address as `tocsin.ingest.network_ranges` has it; null for a text that is none."""
    java = F.try_reflect(F.lit("java.net.InetAddress"), F.lit("getByName"), address)  # "/2001:db8:0:0:0:0:0:1"
    written = F.when(address.rlike(_V4), address).when(address.rlike(_V6), F.substr(java, F.lit(2)))

    def digits(parts: Column) -> Column:
        four = [F.lpad(F.hex(F.get(parts, F.lit(place)).cast("int")), 2, "0") for place in range(4)]
        eight = [F.lpad(F.get(parts, F.lit(place)), 4, "0") for place in range(8)]
        padded = F.concat(F.lit("04"), *four, F.lit("00" * (KEY_BYTES - 5)))
        return F.when(F.size(parts) == 4, padded).when(F.size(parts) == 8, F.concat(F.lit("06"), *eight))

    return F.unhex(_let(F.split(written, "[.:]"), digits))


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """Give `value` to `use`, worked out once, however often it stands there."""
    return F.get(F.transform(F.array(value), use), F.lit(0))
