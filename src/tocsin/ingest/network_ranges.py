"""Read which network an address is in from a CSV file: a column `cidr`, and others with what is known of it.

::

    cidr,country
    203.0.113.0/24,DE
    203.0.113.128/25,AT
    2001:db8::/32,FR

Of the networks that hold an address the smallest counts. Networks lie in each other or apart, so they come down to
ranges of addresses that do not overlap: a sorted list of the first address of each.
"""

from __future__ import annotations

import csv
import io
import socket
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import Enrichment, Source
from tocsin.declare.source_file import digest_of
from tocsin.platform.state_file import write_whole

CIDR = "cidr"
MOST_NETWORKS = 200_000
KEY_BYTES = 17
"""Of an address as a key: 4 or 6, and its bytes; those of IPv4 have twelve zeros behind them."""

_SHOWN = 5
_MAPPED = bytes([6]) + bytes(10) + b"\xff\xff"


class NetworkRanges(NamedTuple):
    """What is known of addresses by ranges, a value for each; None where nothing is known.

    `starts` is the key of the first address of each range, ascending; the first is all zeros.
    """

    starts: list[bytes]
    values: list[str | None]


class _Network(NamedTuple):
    first: bytes
    length: int
    line: int
    value: str | None


def read_content(path: Path) -> bytes:
    """Read the file `path`; ConfigError if it cannot be read, where a retry does not help."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error


def read_ranges(path: Path, column: str, content: bytes | None = None) -> NetworkRanges:
    """Read what the file `path` says in `column` of addresses; an empty field says nothing of its network.

    `content` is that of the file if it was read before. ConfigError, where a retry does not help, names the lines if
    the file cannot be read, lacks a column, has no network or more than MOST_NETWORKS, one that is none, or one twice.
    """
    networks: list[_Network] = []
    faults: list[Fault] = []
    for line, cidr, value in _rows(path, column, read_content(path) if content is None else content):
        try:
            if value and "\0" in value:
                raise ValueError(f"has a NUL in column '{column}'")
            networks.append(_Network(*_read_network(cidr), line, value or None))
        except ValueError as error:
            faults.append(Fault(str(path), str(error), line=line))
        if len(faults) == _SHOWN or len(networks) > MOST_NETWORKS:
            break
    networks.sort()  # a network comes before those inside it
    for before, after in pairwise(networks):
        if before[:2] == after[:2] and len(faults) < _SHOWN:
            faults.append(Fault(str(path), f"has the network of line {before.line} again", line=after.line))
    if len(networks) > MOST_NETWORKS:
        faults = [Fault(str(path), f"has more than {MOST_NETWORKS:,} networks, the most that an ingest holds")]
    elif not networks and not faults:
        faults = [Fault(str(path), "has no network; remove the column from `enrich` if nothing is to be looked up")]
    if faults:
        raise ConfigError(sorted(faults, key=lambda fault: fault.line or 0))
    return _ranges(networks)


def faults_of_networks(sources: Iterable[Source]) -> list[Fault]:
    """List what is wrong with the files that `sources` look up in."""
    faults: list[Fault] = []
    for column, ranges in ((column, ranges) for source in sources for column, ranges in source.enrich.items()):
        try:
            read_ranges(ranges.file, column)
        except ConfigError as error:
            faults += error.faults
    return faults


def _rows(path: Path, column: str, content: bytes) -> Iterator[tuple[int, str, str | None]]:
    try:
        with io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            header = next(reader, [])
            for name in (CIDR, column):
                if header.count(name) != 1:
                    what = f"needs the column '{name}' once; its first line names {', '.join(header) or 'none'}"
                    raise ConfigError([Fault(str(path), what, line=1, nearest=nearest(name, header))])
            key, value = header.index(CIDR), header.index(column)
            for row in reader:
                if row and len(row) != len(header):
                    what = f"has {len(row)} fields, and its first line {len(header)}; a comma within one needs quotes"
                    raise ConfigError([Fault(str(path), what, line=reader.line_num)])
                if row:
                    yield reader.line_num, row[key], row[value]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError.one(path, f"cannot be read: {error}") from error


def _key(address: str) -> bytes | None:
    version = 6 if ":" in address else 4
    try:
        packed = socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, address)
    except (OSError, ValueError):
        return None
    return bytes([version]) + packed + bytes(16 - len(packed))


def _read_network(cidr: str) -> tuple[bytes, int]:
    address, _, length = cidr.strip().partition("/")
    first = _key(address)
    if first is None or not (length.isascii() and length.isdigit() and int(length) <= (32 if first[0] == 4 else 128)):
        raise ValueError(f"{cidr!r} is not a network, such as 203.0.113.0/24 or 2001:db8::/32")
    if first.startswith(_MAPPED):
        raise ValueError(f"{cidr!r} is IPv4 within IPv6; write the network as IPv4, such as 203.0.113.0/24")
    if int.from_bytes(first) & _inside(int(length)):
        raise ValueError(f"{cidr!r} is an address in a network; write the first address of the network")
    return first, int(length)


def _inside(length: int) -> int:
    """Give the bits that tell the addresses of a network apart."""
    return (1 << (128 - length)) - 1


def _ranges(networks: list[_Network]) -> NetworkRanges:
    found = NetworkRanges([bytes(KEY_BYTES)], [None])
    outer: list[tuple[bytes, str | None]] = []  # first address behind it, and value, of the networks now open

    def begin(start: bytes, value: str | None) -> None:
        if start == found.starts[-1]:  # what ended here is not needed
            found.starts.pop()
            found.values.pop()
        if not found.values or value != found.values[-1]:
            found.starts.append(start)
            found.values.append(value)

    def end_before(first: bytes) -> None:
        while outer and outer[-1][0] <= first:
            end, _ = outer.pop()
            begin(end, outer[-1][1] if outer else None)

    for network in networks:
        end_before(network.first)
        begin(network.first, network.value)
        behind = (int.from_bytes(network.first) | _inside(network.length)) + 1
        outer.append((behind.to_bytes(KEY_BYTES), network.value))
    end_before(b"\xff" * KEY_BYTES)
    return found


def with_usable_networks(source: Source, folder: Path) -> tuple[Source, list[Fault]]:
    """Let `source` look up in copies in `folder`: of its files where they are usable, else of what they held before.

    Returns the source, and what is wrong with the files. A file is read once, so what is looked up in is what was found
    usable, though it may change meanwhile.

    Raises:
        ConfigError: a file is not usable, and there is no copy. A retry does not help.
        OSError: the folder cannot be written.
    """
    faults: list[Fault] = []
    enrich: dict[str, Enrichment] = {}
    for column, ranges in source.enrich.items():
        kept = folder / f"{column}.csv"
        try:
            content = read_content(ranges.file)
            read_ranges(ranges.file, column, content)
            write_whole(kept, content)
        except ConfigError as error:
            if not kept.exists():
                raise
            faults += error.faults
        enrich[column] = ranges.model_copy(update={"file": kept, "digest": digest_of(kept)})
    return source.model_copy(update={"enrich": enrich}), faults
