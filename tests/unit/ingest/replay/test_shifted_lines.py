"""Old lines happen now, each with its time written anew in its own form and all else as it was."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Format, Source
from tocsin.ingest.replay.shifted_lines import LineTimes, ShiftedLines

FIRST = datetime(2025, 1, 1, tzinfo=UTC)
SOURCE = Source(name="s", title="t", owner="o", formats=(Format.JSON,), key="k", event_time="at",
                columns={"at": "timestamp", "k": "string"}, ignore=("nothing", r"\p{Alpha}"))  # fmt: skip


def lines(*seconds: float) -> list[tuple[bytes, int]]:
    return [(json.dumps({"at": (FIRST + timedelta(seconds=at)).isoformat(timespec="microseconds"), "k": n}).encode(), n)
            for n, at in enumerate(seconds)]  # fmt: skip


def test_the_first_event_is_now_and_the_others_follow_at_the_speed() -> None:
    shifted = ShiftedLines(SOURCE, 10, threading.Event())
    given = [(b"no time", 7), *lines(0, 1, 0.5, 3), (b"no time", 8), (b"nothing to see", 9)]
    began, got = datetime.now(UTC), []
    for line, beside in shifted.shift(given):
        got.append((line, beside, datetime.now(UTC)))
    assert [beside for _, beside, _ in got] == [0, 1, 2, 3, 9]
    assert got[-1][0] == b"nothing to see"
    times = [datetime.fromisoformat(json.loads(line)["at"]) for line, _, _ in got[:-1]]
    assert times[0] >= began
    assert [round((at - times[0]).total_seconds(), 3) for at in times] == [0, 0.1, 0.05, 0.3]
    assert all(at <= sent for at, (_, _, sent) in zip(times, got, strict=False))
    assert {reason: (one.count, one.first) for reason, one in shifted.left_out.items()} == {
        "no at is found in it": (2, 1)
    }


def test_a_line_of_the_future_holds_up_no_other() -> None:
    shifted = ShiftedLines(SOURCE, 10, threading.Event())
    ahead = (datetime.now(UTC) - FIRST + timedelta(days=1)).total_seconds()
    assert [beside for _, beside in shifted.shift(lines(0, ahead, 1))] == [0, 2]
    assert {reason: one.count for reason, one in shifted.left_out.items()} == {"its time is still to come": 1}


def test_a_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert len(list(ShiftedLines(SOURCE, 1, stop).shift(lines(0, 3600)))) == 1
    assert time.monotonic() - began < 10


OLD = datetime(2024, 2, 29, 23, 59, 58, 250_000, tzinfo=UTC)
NEW = datetime(2026, 11, 4, 7, 8, 9, 123_456, tzinfo=UTC)
APACHE = r'(?<host>\S+) - - \[(?<at>[^\]]+)\] "(?<path>[^"]*)"'


def source(form: Format | tuple[Format, ...], time_format: str = "iso8601", **fields: Any) -> Source:
    forms = form if isinstance(form, tuple) else (form,)
    columns = {"at": "string", "path": "string", "host": "string", "syslog_time": "timestamp"}
    own: dict[str, Any] = {"key": "path", "event_time": "at", "event_time_format": time_format, "columns": columns}
    return Source(name="s", title="t", owner="o", formats=forms, **own | fields)


@pytest.mark.parametrize(
    ("declared", "line", "expected"),
    [
        (source(Format.JSON), '{"x": {"at": 1}, "at" : "2024-02-29T23:59:58.25Z", "at": 2, "é": "\\u00e9"}',
         '{"x": {"at": 1}, "at" : "2026-11-04T07:08:09.12Z", "at": 2, "é": "\\u00e9"}'),
        (source(Format.JSON), '{"é": "ü", "at": "2024-03-01 00:59:58.250000000+01:00"}\r',
         '{"é": "ü", "at": "2026-11-04 08:08:09.123456000+01:00"}\r'),
        (source(Format.JSON, "epoch-seconds"), '{"at": 1709251198.250, "path": "/"}',
         '{"at": 1793776089.123, "path": "/"}'),
        (source(Format.JSON, "epoch-milliseconds"), '{"at": "1709251198250"}', '{"at": "1793776089123"}'),
        (source((Format.KEY_VALUE, Format.JSON)), "path: /a | at: 2024-02-29T23:59:58.250 | host: h | at: x",
         "path: /a | at: 2026-11-04T07:08:09.123 | host: h | at: x"),
        (source((Format.KEY_VALUE, Format.JSON), time_zone="Europe/Berlin"), "at: 2024-03-01 00:59:58.250",
         "at: 2026-11-04 08:08:09.123"),
        (source(Format.LOGFMT), 'xat=1 path="a at=2" at="2024-02-29T23:59:58.25Z" é=1',
         'xat=1 path="a at=2" at="2026-11-04T07:08:09.12Z" é=1'),
        (source(Format.LOGFMT), "a='at=2' at='2024-02-29T23:59:58.25Z'", "a='at=2' at='2026-11-04T07:08:09.12Z'"),
        (source(Format.LOGFMT), "at=2024-02-29T23:59:58.25Z é=1", "at=2026-11-04T07:08:09.12Z é=1"),
        (source(Format.LOGFMT, event_time="syslog_time"), "<158>1 2024-02-29T23:59:58.25+00:00 h heroku router - at=x",
         "<158>1 2026-11-04T07:08:09.12+00:00 h heroku router - at=x"),
        (source(Format.REGEX, "dd/MMM/yyyy:HH:mm:ss.SS Z", patterns=(APACHE,)),
         '\t h - - [29/Feb/2024:21:59:58.25 -0200] "/é"', '\t h - - [04/Nov/2026:05:08:09.12 -0200] "/é"'),
    ],
)  # fmt: skip
def test_a_time_is_found_and_replaced_in_its_own_form(declared: Source, line: str, expected: str) -> None:
    found = LineTimes(declared).find(line.encode())
    assert found.moment == OLD
    assert found.with_time(NEW).decode() == expected


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("EEE MMM [ ]d HH:mm:ss yyyy", "Thu Feb 29 23:59:58 2024", "Wed Nov  4 07:08:09 2026"),
        ("EEEE, d MMMM yy h:mm:ss a", "Thursday, 29 February 24 11:59:58 pm", "Wednesday, 04 November 26 07:08:09 AM"),
        ("yyyyMMdd-H:m:s:SSS", "20240229-23:59:58:7", "20261104-07:08:09:123"),
        ("yyyy-MM-dd HH:mm:ss[,SSSSSS] XXX", "2024-02-29 23:59:58,007 +00:00", "2026-11-04 07:08:09,123 +00:00"),
        ("epoch-microseconds", "1709251198007000", "1793776089123456"),
        ("epoch-nanoseconds", "1709251198007000000", "1793776089123456000"),
    ],
)
def test_forms_beyond_those_of_spark(form: str, old: str, new: str) -> None:
    found = LineTimes(source(Format.REGEX, form, patterns=("(?<at>.*)",))).find(old.encode())
    assert found.moment == OLD.replace(microsecond=7_000 if "7" in old[-14:] else 0)
    assert found.with_time(NEW).decode() == new


def test_a_time_without_a_year_is_the_latest_and_days_keep_their_width() -> None:
    times = LineTimes(source(Format.REGEX, "syslog", patterns=(r"(?<at>\w+ +\d+ [\d:]+) (?<path>.*)",)))
    yesterday = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    found = times.find(f"{yesterday:%b} {yesterday.day:2d} {yesterday:%H:%M:%S} sshd".encode())
    assert found.moment == yesterday
    assert found.with_time(NEW) == b"Nov  4 07:08:09 sshd"
    plain = LineTimes(source(Format.REGEX, "MMM d HH:mm:ss 'o''clock'", patterns=(r"(?<at>.*)",)))
    assert plain.find(b"Nov 4 07:08:09 o'clock").with_time(NEW + timedelta(days=20)) == b"Nov 24 07:08:09 o'clock"


@pytest.mark.parametrize(
    ("declared", "line", "told"),
    [
        (source(Format.JSON), b"[]", "no at is found in it"),
        (source(Format.JSON), b'{"a": 1, "x": {"at": 1}', "no at is found in it"),
        (source(Format.JSON), b'{"at": null}', "its at is no time in the form of the source"),
        (source(Format.JSON), b'{"at": "2026-02-30T00:00:00Z"}', "its at is no time"),
        (source(Format.JSON, "epoch-seconds"), b'{"at": 1e9}', "its at is no time"),
        (source(Format.JSON, "epoch-seconds"), b'{"at": 99999999999999999}', "its at is no time"),
        (source(Format.JSON), b"\xff{", "no at is found in it"),
        (source(Format.KEY_VALUE), b"path: /", "no at is found in it"),
        (source(Format.LOGFMT), b"", "no at is found in it"),
        (source(Format.LOGFMT, event_time="syslog_time"), b"at=1", "no syslog_time is found in it"),
        (source(Format.REGEX, patterns=(APACHE,)), b"h", "no pattern of the source matches it with a value for at"),
    ],
)
def test_a_line_without_such_a_time_says_so(declared: Source, line: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LineTimes(declared).find(line)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (source(Format.JSON, "dd.MM.yyyy KK:mm a"), "holds 'KK', which can be read and not written"),
        (source(Format.JSON, "yyyy-MM-dd HH:mm:ss{"), "which can be read and not written"),
        (source(Format.JSON, "yyyy-MM-dd HH:mm:ss MM"), "cannot be written: redefinition of group name 'month'"),
        (source(Format.EVENTS, event_time="event_time"), "hold no time that could be rewritten"),
        (source(Format.JSON, event_time="ingested_at"), "hold no time that could be rewritten"),
        (source(Format.REGEX, patterns=(r"(?<at>\p{Digit}+)",)), "only Java can read"),
    ],
)
def test_a_source_whose_times_cannot_be_written_is_refused(declared: Source, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LineTimes(declared)


@pytest.mark.parametrize(
    "line",
    [
        '{"t": {"u": {"$date": "2026-01-01T00:00:00Z"}}}',
        '{"a": {"t": 1}, "T": {"u": {"$DATE": "2026-01-01T00:00:00Z"}}}',
        '{"t.u": {"$date": "2026-01-01T00:00:00Z"}, "t": {"u": {"$date": "x"}}}',
        '{"t": {"u": {"$date": "x"}}, "t.u.$date": "2026-01-01T00:00:00Z"}',
    ],
)
def test_a_time_by_a_path(line: str) -> None:
    found = LineTimes(source(Format.JSON, "iso8601", paths={"at": "t.u.$date"})).find(line.encode())
    assert found.moment == datetime(2026, 1, 1, tzinfo=UTC)
    later = found.with_time(datetime(2026, 1, 2, tzinfo=UTC))
    assert later == line.replace("2026-01-01", "2026-01-02").encode()
