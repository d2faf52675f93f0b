"""Guessing a source from a sample: forms, types, key, event time, and what cannot be guessed."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Source
from tocsin.declare.scaffold import source_text
from tocsin.declare.source_file import read_source
from tocsin.ingest.replay.shifted_lines import LineTimes
from tocsin.ingest.sampling.sample import name_columns, read_schema

LOGIN = "user_id: {u} | timestamp: 2026-01-31T14:05:0{n}Z | ip_address: 192.0.2.{n} | action: login failed"
ROUTER = (
    "<158>1 2026-01-31T14:05:0{n}.123456+00:00 host heroku router - at=info method=GET "
    'path="/{u}?a=1" connect=1ms service=18ms status=200 bytes=1548{more}'
)


def sampled(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "sample"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


def guessed(folder: Path, *lines: str | bytes) -> tuple[Source, str]:
    """The source that is guessed from `lines`, and the text of its file."""
    file = folder / "guessed.toml"
    file.write_text(source_text("guessed", read_schema(sampled(folder, *lines)), "a@example.com"))
    return read_source(file), file.read_text()


def test_lines_of_pairs(tmp_path: Path) -> None:
    first, *lines = (LOGIN.format(u="ab"[n % 2], n=n) for n in range(6))
    schema = read_schema(sampled(tmp_path, f"\ufeff{first}", *lines, ""))
    assert (schema.format, schema.lines, schema.key, schema.event_time) == ("key-value", 6, "user_id", "timestamp")
    assert schema.columns == {"user_id": "string", "timestamp": "timestamp", "ip_address": "string", "action": "string"}


@pytest.mark.parametrize("empty", ["n: {n} | note: ", "note: | n: {n}"])
def test_an_empty_value_of_a_pair_is_no_part_of_another(tmp_path: Path, empty: str) -> None:
    lines = [LOGIN.format(u="ab"[n % 2], n=n) + " | " + empty.format(n=n) for n in range(4)]
    assert read_schema(sampled(tmp_path, *lines)).columns["n"] == "int"


def test_a_dash_in_logfmt_is_a_value_as_for_the_ingest(tmp_path: Path) -> None:
    lines = [f"{ROUTER.format(u='ab'[n % 2], n=n, more='')} sent={n or '-'}" for n in range(4)]
    assert read_schema(sampled(tmp_path, *lines)).columns["sent"] == "string"


def test_lines_of_a_router_with_a_field_that_some_lack(tmp_path: Path) -> None:
    lines = [ROUTER.format(u="xy"[n % 2], n=n, more=" desc=late at dawn" if n == 2 else "") for n in range(4)]
    schema = read_schema(sampled(tmp_path, *lines))
    assert (schema.format, schema.key, schema.event_time) == ("logfmt", "path", "syslog_time")
    kinds = {name: schema.columns[name] for name in ("path", "connect", "status", "bytes")}
    assert kinds == {"path": "string", "connect": "double", "status": "int", "bytes": "int"}
    assert schema.optional == {"desc": "string"}
    assert schema.left_out == ('words without a name, such as "at dawn"; a value with blanks needs quotes',)


def test_json_with_numbers_as_times_and_a_file_that_goes_on(tmp_path: Path) -> None:
    values = [
        {"ts": 1769868309123 + n, "shop": n % 3, "price": n + 0.5, "ok": True, "n": 2**40, "x": "x" if n == 3 else n}
        | {"exact": n + 0.5 if n else 2**53 + 1, "large": 1e17, "huge": "#", "empty": n or ""}
        for n in range(9)
    ]
    schema = read_schema(sampled(tmp_path, *(json.dumps(value).replace('"#"', "1e400") for value in values)))
    assert (schema.event_time, schema.event_time_format, schema.key) == ("ts", "epoch-milliseconds", "shop")
    kinds = {"ts": "bigint", "shop": "int", "price": "double", "ok": "boolean", "n": "bigint", "x": "string"}
    assert schema.columns == kinds | {"exact": "string", "large": "double", "huge": "string"}
    assert schema.optional == {"empty": "string"}
    path = sampled(tmp_path, *[json.dumps(values[0] | {"pad": "p" * 5000})] * 300)
    assert 150 < read_schema(path).lines < 201


@pytest.mark.parametrize(
    "line",
    ['{{"u":"a","at":"2026-01-31T14:05:0{n}Z","at":{n}}}', "u: a | at: 2026-01-31T14:05:0{n}Z | at: {n}",
     "u=a at=2026-01-31T14:05:0{n}Z at={n}"],
)  # fmt: skip
def test_the_first_of_fields_with_one_name_counts_as_for_the_ingest(tmp_path: Path, line: str) -> None:
    schema = read_schema(sampled(tmp_path, *(line.format(n=n) for n in range(3))))
    assert schema.columns == {"u": "string", "at": "timestamp"}


def test_the_key_is_a_customer_rather_than_one_of_two_states_or_the_id_of_one_event(tmp_path: Path) -> None:
    events = [
        {"at": f"2026-01-31T14:05:{n:02}Z", "order_id": n, "state": "yn"[n % 2], "customer": "abc"[n % 3]}
        for n in range(12)
    ]
    assert read_schema(sampled(tmp_path, *map(json.dumps, events))).key == "customer"


ACCESS = '203.0.113.{n} - {u} [31/Jan/2026:14:05:0{n} +0000] "GET /{u}?a={n} HTTP/1.1" 200 {more} "-" "curl (x; {u})"'
SYSLOG = "Jan 31 14:05:0{n} web1 {u}[4{n}]: {more}"


@pytest.mark.parametrize(
    ("lines", "form", "columns"),
    [
        (
            [ACCESS.format(u="ab"[n % 2], n=n, more=n * 1000) for n in range(4)],
            "dd/MMM/yyyy:HH:mm:ss Z",
            "address string, word string, at string, method string, path string, status int, number int, "
            "quoted string, quoted_2 string",
        ),
        (
            [SYSLOG.format(u="sshd", n=n, more="x" * n + " of 1") for n in range(4)] + ["Jan  1 00:00:00 web1 cron: a"],
            "syslog",
            "at string, host string, program string, message string",
        ),
        (
            [f"2026-01-31T14:05:0{n}.1Z [INFO] (it's) user={u}, from 192.0.2.1" for n, u in enumerate("abab")],
            "iso8601",
            "at timestamp, level string, user string, address string",
        ),
        (
            ["2026-01-31 14:05:09,123 ERROR in cart", "2026-01-31 14:05:09,124 INFO paid by c1 c2"],
            "yyyy-MM-dd HH:mm:ss,SSS",
            "at string, level string, message string",
        ),
        (
            ["2026/01/31 14:05:09 host=a done", "2026/01/31 14:05:09 host=a done in time"],
            "yyyy/MM/dd HH:mm:ss",
            "at string, host string",
        ),
        (
            ["20260131-14:05:09:11|Steps|3|one 1", "20260131-14:5:0:7|Pulse|4|two 1 | 2", "20260131-14:5:1:7|Steps|3|"],
            "yyyyMMdd-H:m:s:SSS",
            "at string, word string, number int",
        ),
        (
            ["a;2026-01-31 14:05:09;x y", "b;2026-01-31 14:05:10;x", "a;2026-01-31 14:05:10;x"],
            "iso8601",
            "word string, at timestamp, message string",
        ),
        (
            [
                "- 1769868309 2026.01.31 n1 up",
                "FATAL 1769868310 2026.01.31 n2 is down",
                "- 1769868310 2026.01.31 n3 up",
            ],
            "epoch-seconds",
            "word string, at string, date string, message string",
        ),
        (
            [f"2026-01-31 14:05:0{n} \x1b[32mINFO\x1b[0m n{n} ça\xa0va 'x'" for n in range(3)],
            "iso8601",
            "at timestamp, word string",
        ),
        (
            [f"<{33 + n}>1 2026-01-31T14:05:0{n}Z web1 su - ID47 - 'su root' failed for u{n}" for n in range(3)],
            "iso8601",
            "word string, at timestamp, word_2 string",
        ),
        (
            [f"2026-01-31 14:05:0{n}\thost\tuser=jane d{n}\t{'x y' if n else ''}\t{n}\tthe rest" for n in range(3)],
            "iso8601",
            "at timestamp, word string, user string, number int, message string",
        ),
        (
            [f"Jan 31 14:05:0{n} h{n} app: Sat Jan 31 14:05:0{n} 2026 done" for n in range(3)],
            "syslog",
            "at string, host string, word string, word_2 string, number int, word_3 string, number_2 int",
        ),
        (
            [f"app.log.1.2026-01-30_13:53:08 2026-01-31 14:05:09.{n} 25 INFO m" for n in range(3)],
            "iso8601",
            "word string, at timestamp, number int, level string",
        ),
    ],
)
def test_plain_lines_are_read_by_a_pattern(tmp_path: Path, lines: list[str], form: str, columns: str) -> None:
    source, _ = guessed(tmp_path, *lines)
    assert source.event_time_format == form
    required = {name: kind for name, kind in source.columns.items() if name not in source.optional}
    assert required == dict(column.split() for column in columns.split(", "))
    times = LineTimes(source)
    assert {times.find(line.encode()).moment.strftime("%H:%M") for line in lines} <= {"14:05", "00:00"}


@pytest.mark.parametrize(
    ("line", "more"), [(LOGIN + "{more}", " | x-id: 7 | User.name: x"), (ROUTER, " desc=late x-id=7 @l=i User.name=x")]
)
def test_what_was_guessed_is_a_source_that_can_be_read(tmp_path: Path, line: str, more: str) -> None:
    source, _ = guessed(tmp_path, *(line.format(u="ab"[n % 2], n=n, more=more if n else "") for n in range(5)))
    assert source.columns.keys() >= {source.key, *source.optional}
    assert source.paths.items() >= {"x_id": "x-id", "User_name": "User.name"}.items()


@pytest.mark.parametrize(
    ("line", "form", "time"),
    [
        ('time=17643232{n:02} user=u msg="until 2026-01-01 10:00:{n:02} ok"', "logfmt", "time"),
        ("a: to 2026-01-01 10:00:{n:02} | user: u | ts: 1/Jan/2026:10:00:{n:02} +0000", "key-value", "ts"),
    ],
)
def test_a_time_in_a_text_is_not_that_of_a_line_with_a_time_of_its_own(
    tmp_path: Path, line: str, form: str, time: str
) -> None:
    schema = read_schema(sampled(tmp_path, *(line.format(n=n) for n in range(4))))
    assert (schema.format, schema.event_time) == (form, time)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([""], "holds no line"),
        (['I0131 14:05:09.12 a.go:1] user=a until="2026-01-31T15:05:09Z"'], "'14:05:09' stands before the first field"),
        ([f"a until {datetime.now(UTC) + timedelta(days=30):%Y-%m-%d %H:%M:%S} or later"], "' is still to come"),
        (['{"until": "9999-01-31T15:05:09Z", "user": "a"}'], "has no column in all lines that is a time"),
        ([b"\xff\xfe\x00\x01"], "is UTF-16"),
        (["Jan 31 sshd: Failed password for root"] * 3, 'with format = "regex": no time that is known is in line 1'),
        (["Jan 31 14:05:09 a", "a 2026-01-31 14:05:09"], "do not hold a time of one form at one place"),
        (['a;2026-01-31 14:05:09;"x; y"'] * 2, "do not hold a time of one form at one place"),
        (["2026-01-31 14:05:09 a b", "2026-01-31 14:05:09 c"], "could be the key; write the source by hand, from patt"),
        (['{"a": 1}', '{"a": 1}', "no JSON"], ":3: most lines are json, but not this one"),
        (['{"a": "x", "b": "y"}'], "has no column in all lines that is a time"),
        (['{"at": "2026-01-31T14:05:09Z"}'], "could be the key"),
        (['{"at": "2026-01-31T14:05:09Z", "v": NaN}'] * 2, ":1: most lines are json, but not this one: NaN is no JSON"),
        (['{"at": "2026-01-31T14:05:09Z"},'] * 2, "not this one: Extra data"),
        (
            ['{"received_at": "2026-01-31T14:05:09Z", "time": "10/11/2026 10:00:00", "user": "a"}'],
            "read as M/d/yyyy or d/M/",
        ),
        (
            ['{"received_at": "2026-01-31T14:05:09Z", "date": "2026-01-31", "time": "15:05", "user": "a"}'],
            "the time is written in 'date' and 'time', and a source reads it from one field",
        ),
        (
            ['{"received_at": "2026-01-31T14:05:09Z", "time": "2026-01-31 3:05:09 nachm.", "user": "a"}'],
            "'2026-01-31 3:05:09 nachm.' is a time of a form that is not known",
        ),
        (
            ['{"at": "2026-01-31 14:05:09", "tz": "+0100", "user": "a"}'],
            "has times in 'at', and a part of them in 'tz' (+0100), which a source does not read: write both",
        ),
        (['{"at": "2026-01-31 14:05:09", "utcOffset": -300, "user": "a"}'], "a part of them in 'utcOffset' (-300)"),
        (["2026-01-31 14:05:09 zone=CET user=a"], "a part of them in 'zone' (CET)"),
        (
            ['{"Date (EST)": "2026-01-31 14:05:09", "user": "a"}'],
            "without a zone in 'Date (EST)': write the source by hand",
        ),
        (['{"at": "Jan 31 14:05:09", "year": 2024, "user": "a"}'], "a part of them in 'year' (2024)"),
        (['{"at": "2026-01-31 02:05:09", "x": "PM", "user": "a"}'], "a part of them in 'x' (PM)"),
        (['{"date": "2026-01-31T00:00:00Z", "time": "14:05", "user": "a"}'], "a part of them in 'time' (14:05)"),
        (['{"date": "2026-01-31T00:00:00Z", "hour": 7, "user": "a"}'], "a part of them in 'hour' (7)"),
        (
            ['{"year": 2026, "month": 1, "day": 31, "hour": 5, "loaded_at": "2026-01-31T14:05:09Z"}'],
            "the time is written in 'year' and 'month'",
        ),
        (['{"account": "1763633472", "user": "a"}'], "has no column in all lines that is a time"),
        (['{"time": 134087904000000000, "user": "a"}'], "has no column in all lines that is a time"),
        (['{"ticks_time": 639307656000000000, "user": "a"}'], "has no column in all lines that is a time"),
        (['{"timestamp": 816861600.123, "user": "a"}'], "has no column in all lines that is a time"),
        (['<Event id="7"><Time at="2026-01-31T14:05:09Z"/></Event>'], "is neither JSON"),
        (["x" * 1_100_000], "begins with a line of over a megabyte"),
    ],
)
def test_what_cannot_be_guessed_is_told(tmp_path: Path, lines: list[str | bytes], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schema(sampled(tmp_path, *lines))
    assert told in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_schema(tmp_path / "missing")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_rows_of_csv_are_a_source_of_json(tmp_path: Path, mark: str) -> None:
    rows = [["at", "line", "rides", "postcode", "wait", "note"]]
    rows += [[f"2026-11-20 10:0{n}:00", "ab"[n % 2], str(n), f"0123{n}", "18ms", "" if n else "x"] for n in range(4)]
    path = tmp_path / "rides.csv"
    path.write_text("".join(f"{mark.join(row)}\n" for row in rows))
    schema = read_schema(path)
    assert (schema.format, schema.key, schema.event_time, schema.event_time_format) == ("json", "line", "at", "iso8601")
    assert schema.columns == {
        "at": "timestamp", "line": "string", "rides": "int", "postcode": "string", "wait": "string"
    }  # fmt: skip
    assert schema.optional == {"note": "string"}
    (tmp_path / "rides.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_schema(tmp_path / "rides.csv.gz") == schema
    source = tmp_path / "rides.toml"
    source.write_text(source_text("rides", schema, "a@b.example"))
    assert read_source(source).key == "line"


def test_a_number_that_is_measured_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "rides.csv"
    path.write_text("series,at,value\ntaxi,2014-07-01 00:00:00,10844\ntaxi,2014-07-01 00:30:00,8127\n")
    assert read_schema(path).key == "series"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"t,id\n2026-11-20 10:00:00,caf\xe9\n", "row 1 holds the byte E9; if it is Latin-1"),
        (b"t,id\n", "holds no row but that of column names"),
        (b"t,id\n2026-11-20 10:00:00,a,b\n", "many rows with more cells than column names"),
        (b"2026-11-20 10:00:00,a\n", "has no row of column names"),
        (gzip.compress(b"t,id\n", mtime=0), "is compressed with gzip"),
        ("t,id\n".encode("utf-16"), "is UTF-16"),
    ],
)
def test_why_a_csv_file_cannot_be_read_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        read_schema(path)


TIME = "2026-01-31T14:05:{n:02}.5Z"


def records(make: Any) -> list[dict[str, Any]]:
    return [make(n, TIME.format(n=n)) for n in range(12)]


@pytest.mark.parametrize(
    ("make", "time", "key"),
    [
        (lambda n, at: {"@timestamp": at, "log.level": "x", "host": {"name": f"h{n % 3}"}}, "@timestamp", "host.name"),
        (lambda n, at: {"ts": 1617081354.277591 + n, "id.orig_h": f"10.0.0.{n % 3}"}, "ts", "id.orig_h"),
        (lambda n, at: {"t": {"$date": at}, "s": "IW"[n % 2], "attr": {"user": "ab"[n % 2]}}, "t.$date", "attr.user"),
        (
            lambda n, at: {"Event": {"System": {"TimeCreated": {"#a": {"At": at}}, "Host": "ab"[n % 2]}}},
            "Event.System.TimeCreated.#a.At",
            "Event.System.Host",
        ),
        (lambda n, at: {"born": f"19{80 + n * 7 % 12}-01-01T00:00:00Z", "ts": at, "user": "ab"[n % 2]}, "ts", "user"),
        (lambda n, at: {"expires": f"2{at}"[1:].replace("026", "999"), "ts": at, "user": "ab"[n % 2]}, "ts", "user"),
        (
            lambda n, at: {"uptime": 123456789 + n, "user": "ab"[n % 2], "when": f"31/Jan/2026:14:05:{n:02}"},
            "when",
            "user",
        ),
        (lambda n, at: {"local_time": at[:19], "utc_time": at[:19], "u": "ab"[n % 2]}, "utc_time", "u"),
        (lambda n, at: {"time": at[:19], "timestamp": at, "u": "ab"[n % 2]}, "timestamp", "u"),
        (lambda n, at: {"t": at[:19], "half": "PM", "time_year": 2026, "u": "ab"[n % 2]}, "t", "u"),
        (
            lambda n, at: {"t": at[:19], "offset": n, "zone": "a.b", "tz": "UTC", "date": at[:10], "u": "ab"[n % 2]},
            "t",
            "u",
        ),
        (
            lambda n, at: {"received_at": at, "event_ts": at.replace(":05:", f":0{n % 5}:"), "u": "ab"[n % 2]},
            "event_ts",
            "u",
        ),
        (lambda n, at: {"build_date": TIME.format(n=0), "logged": at, "user": "ab"[n % 2]}, "logged", "user"),
        (
            lambda n, at: {
                "last_login": f"2026-01-{n * 7 % 28 + 1}T14:05:00Z",
                "ts": f"Sat Jan 31 14:05:{n:02} 2026",
                "u": "ab"[n % 2],
            },
            "ts",
            "u",
        ),
        (
            lambda n, at: {"expires": at.replace("2026", "9999"), "when": 1763633472 + n, "user": "ab"[n % 2]},
            "when",
            "user",
        ),
        (lambda n, at: {"at": f"Feb 29 {22 + n // 5}:{n:02}:00", "user": "ab"[n % 2]}, "at", "user"),
        (lambda n, at: {"recv_time": at, "logged": {"time": at}, "user": "ab"[n % 2]}, "logged.time", "user"),
        (
            lambda n, at: {"received_at": at, "time": f"31/Jan/2026:14:05:{n:02} +0000", "user": "ab"[n % 2]},
            "time",
            "user",
        ),
        (
            lambda n, at: {"received_at": at, "born_date": f"198{n % 9}-01-01T00:00:00Z", "u": "ab"[n % 2]},
            "received_at",
            "u",
        ),
        (lambda n, at: {"update_id": 123456789 + n, "date": 1763633472 + n, "user": "ab"[n % 2]}, "date", "user"),
        (
            lambda n, at: {"__MONO_TIME": str(1234567890 + n), "__TIME": str(1763633472123456 + n), "_H": "ab"[n % 2]},
            "__TIME",
            "_H",
        ),
        (lambda n, at: {"time": at, "detail-type": "t", "source": "aws", "user": "ab"[n % 2]}, "time", "user"),
        (
            lambda n, at: {
                "time": at,
                "id": n,
                "detail": {"userIdentity": {"type": "ab"[n % 2], "userName": f"u{n % 3}"}},
            },
            "time",
            "detail.userIdentity.userName",
        ),
        (
            lambda n, at: {"createdAt": 1617081354277 + n, "k": n, "data": {"f": 1.5, "sourceIPAddress": "ab"[n % 2]}},
            "createdAt",
            "data.sourceIPAddress",
        ),
    ],
)
def test_time_and_key_are_found_at_any_path(tmp_path: Path, make: Any, time: str, key: str) -> None:
    made = records(make)
    source, text = guessed(tmp_path, *map(json.dumps, made))
    assert (source.field_of(source.event_time), source.field_of(source.key)) == (time, key)
    fields = {source.field_of(column) for column in source.columns}
    assert [name for name in made[0] if name not in fields and name not in text] == []


def test_names_of_every_kind_make_a_file_that_can_be_read(tmp_path: Path) -> None:
    names = ["at", "who", "Who", "window", "source", "event-time", "event_time", "a b", "a_b", "1st", "x" * 80]
    names += ["é", '"q"', "$", "", " ", "\x7f", "\ud800", "a\nb", "never", "\\", "'", "😀", "_", "-"]
    made = records(lambda n, at: dict.fromkeys(names, 1) | {"at": at, "who": "ab"[n % 2], "never": None})
    source, text = guessed(tmp_path, *map(json.dumps, made))
    read = {source.field_of(column) for column in source.columns}
    assert source.match_case
    assert read == set(names) - {"$", "", " ", "\x7f", "\ud800", "a\nb", "never"}
    left_out = [line for line in text.splitlines() if line.startswith("# Left out")]
    assert len(left_out) == 7
    source, text = guessed(tmp_path, *map(json.dumps, [{"at": made[0]["at"], who: "a"} for who in ("who", "Who")]))
    assert (source.match_case, "Left out: Who (read as who" in text) == (False, True)


def test_fields_within_fields_are_named_for_those_who_want_them() -> None:
    found = name_columns([{"a": {"b": {"c": 1}, "d.e": 2, "f": [1]}}, {"a": "text", "g": {}}])
    assert found.nested == {"a_b_c": [1, None]}
    assert found.records == [{"a": {"b": {"c": 1}, "d.e": 2, "f": [1]}, "g": None}, {"a": "text", "g": {}}]
