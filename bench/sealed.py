"""Days of logins as sealing would make them, written at once: no landing, no Spark.

Which events there are is said by `bench.past`; a test compares such days with days that were landed and sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bench.past import Happened, Numbers, Past, events, happened, names
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import BUCKETS, DayVersion, SealedFile, paths
from tocsin.history.parquet_files import digest
from tocsin.history.places import Places, end, stamp
from tocsin.quality.day_facts import DayFacts

Words = np.ndarray[tuple[int], np.dtype[np.uint32]]

_WRITERS = 2
_TIME_BITS = 37  # microseconds of a day
_SEED, _C1, _C2, _M = (np.uint32(number) for number in (42, 0xCC9E2D51, 0x1B873593, 0xE6546B64))
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


@dataclass(frozen=True)
class _Order:
    """How events are laid out.

    Attributes:
        people: `names`.
        places: of each of them, where it stands when all are sorted by bucket and name.
        edges: the place of the first of each bucket, and one behind the last.
    """

    people: pa.Array
    places: Numbers
    edges: Numbers


def seal_past(settings: Settings, source: Source, past: Past) -> list[DayVersion]:
    """Write and publish each day of `past`, as one version that passed its gate without a report."""
    order, versions = _order(names(past), BUCKETS), []
    with DayTable(settings, source) as table:
        for day in past.dates:
            version = _written(settings, source, past, day, order)
            table.rows.write(day, version)
            table.publish(day, version.version, paths(table.places, day, version), {})
            versions.append(version)
    return versions


def buckets_of(keys: Sequence[str], buckets: int) -> Numbers:
    """The bucket of each of `keys`, as Spark says it: `pmod(hash(key), buckets)`.

    The hash is that of `org.apache.spark.unsafe.hash.Murmur3_x86_32.hashUnsafeBytes`: Murmur3, but each byte behind
    the last whole word is mixed in as a word of its own.
    """
    encoded = [key.encode() for key in keys]
    lengths, found = np.array([len(key) for key in encoded]), np.zeros(len(keys), np.int64)
    for length in np.unique(lengths):
        these = np.flatnonzero(lengths == length)
        together = np.frombuffer(b"".join(encoded[at] for at in these), np.uint8).reshape(len(these), length)
        found[these] = _hashes(together).view(np.int32).astype(np.int64) % buckets
    return found


def _hashes(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> Words:
    length = rows.shape[1]
    whole = length - length % 4
    words = [np.ascontiguousarray(rows[:, at : at + 4]).view("<u4")[:, 0] for at in range(0, whole, 4)]
    words += [rows[:, at].astype(np.int8).astype(np.int32).view(np.uint32) for at in range(whole, length)]
    value: Words = np.full(len(rows), _SEED)
    for word in words:
        value = _turned(value ^ (_turned(word * _C1, 15) * _C2), 13) * np.uint32(5) + _M
    value = value ^ np.uint32(length)
    value = (value ^ (value >> np.uint32(16))) * _F1
    value = (value ^ (value >> np.uint32(13))) * _F2
    return value ^ (value >> np.uint32(16))


def _turned(words: Words, by: int) -> Words:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))


def _order(people: Sequence[str], buckets: int) -> _Order:
    its_bucket = buckets_of(people, buckets)
    order = np.lexsort((np.array([name.encode() for name in people]), its_bucket))
    places = np.empty(len(people), np.int64)
    places[order] = np.arange(len(people))
    return _Order(pa.array(people), places, np.searchsorted(its_bucket[order], np.arange(buckets + 1)))


def _written(settings: Settings, source: Source, past: Past, day: date, order: _Order) -> DayVersion:
    name = f"v{stamp(datetime.now(UTC))}"
    folder = Path(str(Places.of(settings, source.name).version(day, name)))
    folder.mkdir(parents=True)
    parts = list(happened(past, day))
    who = np.concatenate([part.who for part in parts])
    times = np.concatenate([part.times for part in parts])
    failed = np.concatenate([part.failed for part in parts])
    offsets = np.concatenate([part.offsets for part in parts])
    keys = order.places[who] << _TIME_BITS | times
    rows = np.argsort(keys, kind="stable")
    edges = np.searchsorted(keys[rows], order.edges << _TIME_BITS)

    def write(bucket: int) -> SealedFile:
        these = rows[edges[bucket] : edges[bucket + 1]]
        some = Happened(who[these], times[these], failed[these], offsets[these])
        return _file(folder / f"part-00000_{bucket:05d}.c000.zstd.parquet", events(source, day, order.people, some))

    with ThreadPoolExecutor(_WRITERS) as writers:
        files = list(writers.map(write, np.flatnonzero(np.diff(edges)).tolist()))
    return _described(settings, source, _facts(source, day, name, past), tuple(files))


def _file(path: Path, table: pa.Table) -> SealedFile:
    # The page index is what Spark's writer adds, and its reader uses to skip.
    parquet.write_table(table, path, compression="zstd", compression_level=3, store_schema=False, write_page_index=True)
    return SealedFile(name=path.name, rows=table.num_rows, bytes=path.stat().st_size, sha256=digest(path))


def _facts(source: Source, day: date, version: str, past: Past) -> DayFacts:
    return DayFacts(
        source=source.name,
        day=day,
        version=version,
        rows=past.rows,
        landed=past.rows,
        duplicates=0,
        imported=0,
        late=0,
        partitions={},
        newest_event=None,
        newest_append=None,
        read_through=end(day),
        previous_rows=None,
    )


def _described(settings: Settings, source: Source, facts: DayFacts, files: tuple[SealedFile, ...]) -> DayVersion:
    now = datetime.now(UTC)
    return DayVersion(
        version=facts.version,
        sealed_at=now,
        code="bench",
        key=source.key,
        buckets=BUCKETS,
        columns=columns_of(source),
        runs=frozenset(),
        base=None,
        facts=facts,
        files=files,
        severity="pass",
        published_at=now,
    )
