"""Logfmt lines to events: Heroku's router lines, and that Spark and Python read every line alike."""

import random

from tests.spark.raw_records import ROOT, Raw, Read, source
from tocsin.declare.model.source import Format
from tocsin.declare.source_file import read_source
from tocsin.ingest.line_forms import logfmt_reader

ROUTER = read_source(ROOT / "examples/routes/sources/router.toml")
HEADER = "<158>1 2026-01-01T11:59:59.123456+00:00 host heroku router - "
REQUEST = (
    'at=info method=GET path="/cart?a=1&b=\\"x\\"" host=shop.example.com request_id=7f3c fwd="192.0.2.1,10.0.0.1"'
    " dyno=web.1 connect=1ms service=18ms status=200 bytes=1548 protocol=https tls_version=tls1.3"
)
TIMED_OUT = (
    'at=error code=H12 desc="Request timeout" method=GET path="/slow" dyno=web.1'
    " connect= service=30000ms status= bytes="
)


def test_lines_of_the_router(read: Read) -> None:
    cut_off = 'at=info path=/x desc="path=/y'
    lines = (
        REQUEST,
        TIMED_OUT,
        "at=info method=GET",
        cut_off,
        "State changed from up to down",
        "at=info path=/ status=ok",
    )
    found = read(ROUTER, *[HEADER + line for line in lines], REQUEST)
    time = {"syslog_time": "2026-01-01T11:59:59.123456Z"}
    assert [out.reasons or out.columns for out in found] == [
        time
        | {"at": "info", "method": "GET", "path": '/cart?a=1&b="x"', "host": "shop.example.com", "request_id": "7f3c"}
        | {"fwd": "192.0.2.1,10.0.0.1", "dyno": "web.1", "connect": 1.0, "service": 18.0, "status": 200, "bytes": 1548}
        | {"protocol": "https"},
        time
        | {"at": "error", "code": "H12", "desc": "Request timeout", "method": "GET", "path": "/slow", "dyno": "web.1"}
        | {"service": 30000.0},
        ["missing:path"],
        ["not_logfmt"],
        ["not_logfmt"],
        ["wrong_type:status"],
        ["missing:syslog_time"],
    ]
    assert found[0].key == '/cart?a=1&b="x"'


def test_spark_and_python_read_every_line_alike(read: Read) -> None:
    dice = random.Random(7)
    pieces = [
        "at=",
        "visitor=",
        "k=",
        '"',
        "\\",
        '\\"',
        "'",
        "' ",
        " ",
        "  ",
        "\t",
        "=",
        "x",
        "é",
        "\n",
        "[a b=",
        "]",
        "- ",
        HEADER,
    ]
    lines = ["v=1 " + "".join(dice.choices(pieces, k=dice.randrange(1, 14))) + "z" for _ in range(400)]
    lines += [HEADER + dice.choice(["", "- \ufeff"]) + line for line in lines]
    columns = {"at": "string", "visitor": "string", "k": "string", "syslog_time": "string", "syslog_app": "string"}
    declared = source(
        formats=(Format.LOGFMT,),
        columns=columns | {"ts": "bigint"},
        key="ts",
        event_time="ts",
        event_time_format="epoch-seconds",
        optional=frozenset(columns),
    )
    lines = [f"{line} ts=1767268799" for line in lines]
    for line, out in zip(lines, read(declared, *lines), strict=True):
        told = {column: logfmt_reader(column)(line.encode()) for column in columns}
        expected = {column: value.decode() for column, value in told.items() if value is not None}
        found = {column: out.columns[column] for column in columns if column in out.columns}
        if logfmt_reader("ts")(line.encode()) == b"1767268799":
            assert found == expected, line
        else:
            assert out.reasons, line


def test_a_batch_that_is_sent_twice_is_the_same_events(read: Read) -> None:
    batch = "0123456789abcdef" * 2
    place = [("tocsin-batch", f"{batch}/{index}".encode()) for index in (0, 7)]
    records = [Raw((HEADER + REQUEST).encode(), headers=[header]) for header in (*place, *place)]
    forged = [Raw((HEADER + REQUEST).encode(), headers=[("tocsin-batch", b)]) for b in (b"x/1", b"", batch.encode())]
    events = [out.value for out in read(ROUTER, *records, *forged)]
    places = sorted((event["raw_topic"], event["raw_partition"], event["raw_offset"]) for event in events)
    assert places == [
        *[(f"batch:{batch}", 0, 0)] * 2,
        *[(f"batch:{batch}", 0, 7)] * 2,
        *[("raw.router", 0, offset) for offset in (4, 5, 6)],
    ]


def test_a_quarantined_record_of_a_batch_keeps_both_identities(read: Read) -> None:
    header = ("tocsin-batch", b"0123456789abcdef0123456789abcdef/3")
    (out,) = read(ROUTER, Raw(b"junk", headers=[header]))
    assert out.value["origin"]["topic"] == "raw.router"
    assert [one["key"] for one in out.value["headers"]] == ["tocsin-batch"]
