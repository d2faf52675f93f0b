"""JSON records to keys and values in Spark: values as they are written, and fields by a path.

`from_json` reads a number as a double even where text is asked for (`1.10` becomes `1.1`), and writes a character
beyond U+FFFF as two escapes. So numbers are made strings with a mark before they are read, and lose it afterwards.
"""

from __future__ import annotations

import secrets

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.source import Format, Source

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
    return F.from_json(F.concat(F.lit("["), _marked(text), F.lit("]")), "array<map<string,string>>", _OPTIONS)


def as_written(value: Column, text: Column) -> Column:
    """Turn a value of `json_objects(text)` into what stands in the record; of a nested value, without blanks."""
    plain = F.when(value.contains(_MARK), F.regexp_replace(value, f'"?{_MARK}([^"]*+)"?', "$1")).otherwise(value)
    # Two backslashes before a u: some text holds such an escape as its own, which must stay.
    is_escaped = value.rlike(_SURROGATE) & ~text.contains(r"\\uD")
    return F.when(is_escaped, _joined_surrogates(plain)).otherwise(plain)


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
