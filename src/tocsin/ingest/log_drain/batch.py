"""The lines of one request, as records of a raw topic: from syslog frames, or from lines of text. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.source import Format, Source
from tocsin.ingest.line_forms import syslog_header

MOST_RECORDS = 20_000
"""Records of one batch; more in one request are refused."""

_COUNT = re.compile(rb"([0-9]{1,7}) ")
_NOTICE = b"Error L10"
_LOST = re.compile(rb"Error L10 \(output buffer overflow\): ([0-9]{1,12}) messages? dropped")
_LOGPLEX = (b"heroku", b"logplex")


class BadRequest(TocsinError):
    """A request that is wrong however often it is sent; `status` is that of the answer."""

    def __init__(self, status: int, what: str) -> None:
        self.status = status
        super().__init__(what)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The records of one request.

    Attributes:
        identity: 32 hex digits, the same when the batch is sent again; empty when that cannot be known.
    """

    source: Source
    records: tuple[tuple[int, bytes], ...]
    identity: str = ""
    lost: int = 0
    left_out: int = 0


def identity_of(source: Source, *parts: bytes) -> str:
    """Make the identity of a batch of what its sender repeats: without the last of `parts` there is none."""
    if not parts[-1]:
        return ""
    digest = hashlib.sha256(source.name.encode())
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.hexdigest()[:32]


def split_frames(body: bytes) -> list[bytes]:
    """Split octet-counted frames, `<count> <message>` again and again (RFC 6587).

    BadRequest if a count is none, or goes beyond the end.
    """
    frames: list[bytes] = []
    at = 0
    while at < len(body):
        count = _COUNT.match(body, at)
        if count is None:
            raise BadRequest(400, f"frame {len(frames) + 1}, at byte {at}, does not begin with its length and a blank")
        begin, at = count.end(), count.end() + int(count[1])
        if at > len(body):
            what = f"is {int(count[1])} bytes long, and {len(body) - begin} are left"
            raise BadRequest(400, f"frame {len(frames) + 1} says that it {what}")
        frames.append(body[begin:at])
    return frames


def read_frames(body: bytes, source: Source, identity: str, expected: bytes = b"", only: str = "*") -> Batch:
    """Read octet-counted syslog lines; BadRequest, and nothing is taken, if a frame or their number is wrong.

    `expected` is how many frames there should be, as text, empty when that was not said; `only` a pattern of the
    `app/process` of the lines that the source takes.
    """
    frames = split_frames(body)
    if expected and expected != b"%d" % len(frames):
        raise BadRequest(
            400, f"Logplex-Msg-Count says {expected.decode('latin-1')[:20]}, there are {len(frames)} frames"
        )
    lost = 0
    if _NOTICE in body:
        notices = [_lost_lines(frame) for frame in frames]
        frames = [frame for frame, notice in zip(frames, notices, strict=True) if notice is None]
        lost = sum(notice or 0 for notice in notices)
    taken = [(index, frame) for index, frame in enumerate(frames) if only == "*" or _is_taken(frame, only)]
    records = [(index, record_of(frame, source)) for index, frame in taken]
    return _batch(source, records, identity, lost=lost, left_out=len(frames) - len(taken))


def read_lines(body: bytes, source: Source, identity: str) -> Batch:
    """Read one record a line; blank lines do not count."""
    lines = (line.removesuffix(b"\r") for line in body.split(b"\n"))
    return number_records((line for line in lines if line.strip()), source, identity)


def number_records(records: Iterable[bytes], source: Source, identity: str) -> Batch:
    """Make a batch of `records` in their order."""
    return _batch(source, list(enumerate(records)), identity)


def record_of(line: bytes, source: Source) -> bytes:
    """Turn a syslog line into a record of `source`; what is no syslog line stays as it is: the ingest judges it.

    Logfmt and patterns get the whole line; JSON and key-value lines, which have no place for its header, the message.
    """
    line = line.removesuffix(b"\n")
    takes_whole = Format.LOGFMT in source.formats or Format.REGEX in source.formats
    if takes_whole and Format.JSON not in source.formats:
        return line
    header = syslog_header(line)
    if header is None:
        return line
    message = line[header.end() :]
    is_json = Format.JSON in source.formats and message.lstrip().startswith(b"{")
    return line if takes_whole and not is_json else message


def _is_taken(line: bytes, only: str) -> bool:
    header = syslog_header(line)
    return header is None or fnmatchcase((header[3] + b"/" + header[4]).decode("latin-1"), only)


def _lost_lines(line: bytes) -> int | None:
    """Read the notice of Logplex that it has lost lines; None for any other line."""
    if _NOTICE not in line:
        return None
    header = syslog_header(line)
    notice = _LOST.match(line, header.end()) if header and (header[3], header[4]) == _LOGPLEX else None
    return int(notice[1]) if notice else None


def _batch(source: Source, records: list[tuple[int, bytes]], identity: str, **counts: int) -> Batch:
    if len(records) > MOST_RECORDS:
        raise BadRequest(413, f"more than {MOST_RECORDS:,} records in one request: send fewer at once")
    return Batch(source=source, records=tuple(records), identity=identity, **counts)
