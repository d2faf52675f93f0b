"""Look up addresses in files of networks, in Spark expressions alone.

Real-time mode takes no Python, and Spark joins by ranges only by comparing each pair. So the ranges of a file are one
binary literal of records of equal length, 21 bytes each, and a binary search finds the one of an address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.source import Source
from tocsin.ingest.network_ranges import KEY_BYTES, read_ranges

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
