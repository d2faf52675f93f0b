"""Frames and lines to records, with every way in which a frame can be wrong."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rig.played_kafka import played_kafka, written
from tests.unit.ingest.log_drain.drain_source import source
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.declare.model.source import Format
from tocsin.declare.settings import Settings
from tocsin.ingest.log_drain.batch import (
    MOST_RECORDS,
    BadRequest,
    identity_of,
    read_frames,
    read_lines,
    record_of,
    split_frames,
)
from tocsin.ingest.log_drain.server import BatchWriter

HEADER = b"<158>1 2026-01-01T11:59:59+00:00 host heroku router - "
NOTICE = HEADER.replace(b"router", b"logplex") + b"Error L10 (output buffer overflow): 23 messages dropped since"


def framed(*lines: bytes) -> bytes:
    return b"".join(b"%d %s" % (len(line), line) for line in lines)


@given(st.lists(st.binary(max_size=300)))
def test_frames_come_back_as_they_were(lines: list[bytes]) -> None:
    assert split_frames(framed(*lines)) == lines


@given(st.binary(max_size=60))
def test_hostile_frames_are_read_or_refused(body: bytes) -> None:
    try:
        frames = split_frames(body)
    except BadRequest as error:
        assert error.status == 400
    else:
        assert sum(map(len, frames)) <= len(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"x", "frame 1, at byte 0"),
        (b"3 abcx", "frame 2, at byte 5"),
        (b"4 abc", "says that it is 4 bytes long, and 3 are left"),
        (b"-1 a", "at byte 0"),
        (b"99999999 a", "at byte 0"),
        (b"5", "at byte 0"),
    ],
)
def test_a_broken_frame_says_where(body: bytes, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        split_frames(body)


def test_frames_become_records_and_notices_are_counted() -> None:
    body = framed(NOTICE, HEADER + b"k=1\n", HEADER.replace(b"router", b"web.1") + b"k=2", HEADER + b"k=3")
    batch = read_frames(body, source(), "id", b"4", "heroku/router")
    assert batch.records == ((0, HEADER + b"k=1"), (2, HEADER + b"k=3")), "a notice, which may come later, has no index"
    assert (batch.lost, batch.left_out, batch.identity) == (23, 1, "id")


def test_only_logplex_gives_notice() -> None:
    forged = NOTICE.replace(b"logplex", b"web.1")
    batch = read_frames(framed(forged), source(), "i")
    assert (batch.lost, len(batch.records)) == (0, 1)


@pytest.mark.parametrize("count", [b"2", b"0", b"x", b"1 "])
def test_a_wrong_number_of_frames_is_refused(count: bytes) -> None:
    with pytest.raises(BadRequest, match="there are 1 frames"):
        read_frames(framed(b"a"), source(), "", count)


def test_too_many_records_are_refused() -> None:
    with pytest.raises(BadRequest) as told:
        read_lines(b"a\n" * (MOST_RECORDS + 1), source(), "")
    assert told.value.status == 413


@pytest.mark.parametrize("line", [b"x" * RAW_BYTES, b"k=" + b"x" * (RAW_BYTES // 2)])
def test_nothing_of_a_batch_with_a_line_that_kafka_never_takes_is_written(tmp_path: Path, line: bytes) -> None:
    with played_kafka("raw.router") as kafka:
        settings = Settings(project=tmp_path, state=tmp_path, kafka=kafka)
        with BatchWriter(settings) as writer, pytest.raises(BadRequest, match="record 2 is longer") as refused:
            asyncio.run(writer.store(read_lines(b"k=1\n" + line, source(), "")))
        assert refused.value.status == 413
        assert [written(settings, "raw.router", partition) for partition in range(4)] == [[]] * 4


def test_lines_are_records_but_for_blank_ones() -> None:
    assert read_lines(b"a\r\n\n \nb", source(), "").records == ((0, b"a"), (1, b"b"))


@pytest.mark.parametrize(
    ("formats", "message", "is_whole"),
    [
        ((Format.LOGFMT,), b"k=v", True),
        ((Format.REGEX,), b"k=v", True),
        ((Format.JSON,), b'{"k": 1}', False),
        ((Format.KEY_VALUE, Format.JSON), b"k: v", False),
        ((Format.LOGFMT, Format.JSON), b'{"k": 1}', False),
        ((Format.LOGFMT, Format.JSON), b"k=v", True),
    ],
)
def test_what_a_source_gets_of_a_syslog_line(formats: tuple[Format, ...], message: bytes, is_whole: bool) -> None:
    whole = HEADER + message
    assert record_of(whole, source(*formats)) == (whole if is_whole else message)
    assert record_of(message, source(*formats)) == message


def test_an_identity_is_that_of_source_sender_and_frame() -> None:
    one, other = source(), source(name="other")
    of = [identity_of(one, b"d", b"f"), identity_of(other, b"d", b"f"), identity_of(one, b"df", b"f")]
    assert len({*of, identity_of(one, b"d", b"ff")}) == 4
    assert (identity_of(one, b"d", b"f"), identity_of(one, b"d", b"")) == (of[0], "")
