"""Lines of an auth.log as they are: ignored ones, several patterns, times without a year and without a zone."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import Row, SparkSession

from tests.spark.raw_records import ROOT, SCHEMA, Read, source
from tocsin.declare.model.source import Format, Source
from tocsin.declare.source_file import read_source
from tocsin.ingest.spark.envelope import observe
from tocsin.ingest.spark.parse import parsed
from tocsin.ingest.spark.patterns import check_source

SSHD = read_source(ROOT / "examples/ssh/sources/sshd.toml")
BERLIN = ZoneInfo("Europe/Berlin")
COLUMNS = {"visitor": "string", "at": "timestamp"}


def syslog_time(moment: datetime, zone: ZoneInfo = BERLIN) -> str:
    local = moment.astimezone(zone)
    return f"{local:%b} {local.day:2d} {local:%H:%M:%S}"


def of_sshd(moment: datetime, message: str, program: str = "sshd[4711]") -> str:
    return f"{syslog_time(moment)} web1 {program}: {message}"


def parse(spark: SparkSession, source: Source, *lines: tuple[str, datetime]) -> list[Row]:
    """Parses lines, each appended at its time."""
    rows = [(None, text.encode(), "raw.s", 0, offset, at, None) for offset, (text, at) in enumerate(lines)]
    return parsed(spark.createDataFrame(rows, SCHEMA), source).orderBy("raw_offset").collect()


def utc(row: Row) -> datetime | None:
    """The event time; Spark gives it in the zone of the session, which is UTC."""
    return None if row.event_time is None else row.event_time.replace(tzinfo=UTC)


def test_the_example_reads_an_auth_log(spark: SparkSession) -> None:
    now = datetime(2026, 11, 24, 12, tzinfo=UTC)
    random = Random(5)
    lines: list[tuple[str, tuple[Any, ...] | None]] = []
    for number in range(300):
        moment, port = now - timedelta(seconds=300 - number), random.randrange(1024, 65536)
        user = random.choice(["root", "ann", "x from 1.2.3.4 port 5 ssh2", "", "jörg"])
        address = f"203.0.113.{random.randrange(256)}"
        kinds = ["failed", "unknown", "accepted", "invalid", "old", "repeated", "repeated_old", "cron", "closed"]
        kind = random.choice([*kinds, "more", "reverse"])
        of_whom = f"{user} from {address} port {port}"
        failed, old = f"Failed password for {of_whom} ssh2", f"Invalid user {user} from {address}"
        program, message, found = {
            "failed": ("sshd[1]", failed, ("Failed", "password", None)),
            "unknown": ("sshd-session[12]", f"Failed none for invalid user {of_whom} ssh2", ("Failed", "none", None)),
            "accepted": ("sshd[3]", f"Accepted publickey for {of_whom} ssh2: RSA x", ("Accepted", "publickey", None)),
            "invalid": ("sshd[4]", f"Invalid user {of_whom}", (None, None, None)),
            "old": ("sshd[4]", old, (None, None, None)),
            "repeated": ("sshd[1]", f"message repeated 17 times: [ {failed}]", ("Failed", "password", 17)),
            "repeated_old": ("sshd[1]", f"message repeated 2 times: [ {old}]", (None, None, 2)),
            "more": ("sshd[1]", f"PAM 5 more authentication failures; rhost={address}  user={user}", None),
            "reverse": ("sshd[1]", f"reverse mapping checking getaddrinfo for x [{address}] failed.", None),
            "cron": ("CRON[5]", f"pam_unix(cron:session): session opened for user {user}", None),
            "closed": ("sshd[6]", f"Connection closed by {address} port {port} [preauth]", None),
        }[kind]
        lines.append((of_sshd(moment, message, program), found and (moment, user or None, address, *found)))
    rows = parse(spark, SSHD, *[(line, now) for line, _ in lines])
    read = [
        None
        if row.ignored
        else (utc(row), *(row.columns[name] for name in ("user", "address", "result", "method", "repeated")))
        for row in rows
    ]
    assert read == [expected for _, expected in lines]
    assert Counter(row.reasons for row in rows) == {"": len(lines)}


def test_the_patterns_of_the_example_are_not_hostile(spark: SparkSession) -> None:
    check_source(spark, SSHD, ())


def test_ignored_records_are_counted_and_written_nowhere(spark: SparkSession, read: Read) -> None:
    chatty = source(ignore=("^#", '"heartbeat"'))
    good = '{"visitor": "v", "at": "2026-01-01T11:59:59Z"}'
    records: list[bytes | str] = ["# a comment", good, '{"kind": "heartbeat"}', "junk", "", b"#\xff"]
    assert [out.reasons for out in read(chatty, *records)] == [[], ["not_json"], ["empty"], ["not_utf8"]]
    rows = [(None, r if isinstance(r, bytes) else r.encode(), "raw.s", 0, n, datetime.now(UTC), None)
            for n, r in enumerate(records)]  # fmt: skip
    counted = observe(parsed(spark.createDataFrame(rows, SCHEMA), chatty))
    execution = counted._jdf.queryExecution()
    execution.executedPlan().executeCollect()
    row = execution.observedMetrics().apply("ingest")
    figures = {name: row.get(n) for n, name in enumerate(row.schema().fieldNames())}
    assert (figures["records"], figures["ignored"], figures["quarantined"]) == (6, 2, 3)


CHANGES = (
    "2025-12-31T23:00:00Z",  # new year in Berlin
    "2026-01-01T00:00:00Z",
    "2024-02-29T12:00:00Z",
    "2024-02-29T23:00:00Z",
    "2026-03-29T01:00:00Z",  # clocks go forward
    "2026-10-25T00:00:00Z",  # the hour from 2 to 3 begins
    "2026-10-25T01:00:00Z",  # and begins again
)
BY_HALF_AN_HOUR = ("2026-04-04T14:30:00Z", "2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z")


@pytest.mark.parametrize(("zone", "changes"), [("Europe/Berlin", CHANGES), ("Australia/Lord_Howe", BY_HALF_AN_HOUR)])
def test_a_time_without_year_and_zone_is_that_of_the_event(
    spark: SparkSession, zone: str, changes: tuple[str, ...]
) -> None:
    """Whatever moment is written down, and appended within the next half hour, is found again."""
    random = Random(1)
    visits = source(formats=(Format.REGEX,), patterns=("(?<at>[^|]+)[|](?<visitor>.*)",), columns=COLUMNS,
                    event_time_format="syslog", time_zone=zone, optional=frozenset())  # fmt: skip
    moments = [
        datetime.fromisoformat(change) + timedelta(seconds=random.randrange(-4_000, 4_000))
        for change in changes
        for _ in range(40)
    ]
    lines = [
        (f"{syslog_time(moment, ZoneInfo(zone))}|v", moment + timedelta(seconds=random.randrange(-5, 1_790)))
        for moment in moments
    ]
    rows = parse(spark, visits, *lines)
    assert [(utc(row), row.reasons) for row in rows] == [(moment, "") for moment in moments]


def test_years_and_zones_that_cannot_be_told(spark: SparkSession) -> None:
    visits = source(formats=(Format.REGEX,), patterns=("(?<at>[^|]+)[|](?<visitor>.*)",), columns=COLUMNS,
                    event_time_format="MMM d HH:mm:ss", optional=frozenset())  # fmt: skip
    march = datetime(2026, 3, 1, tzinfo=UTC)
    rows = parse(
        spark, visits,
        ("Feb 29 12:00:00|v", march),  # neither in 2027, 2026 nor 2025
        ("Feb 29 12:00:00|v", march.replace(year=2025)),  # of the year before
        ("Mar 1 00:01:00|v", march),  # a fast clock, not one that stopped a year ago
        ("Mar 2 00:01:00|v", march),
        ("Feb 30 12:00:00|v", march),
    )  # fmt: skip
    assert [row.reasons for row in rows] == ["wrong_type:at", "", "time_ahead", "", "wrong_type:at"]
    assert utc(rows[1]) == datetime(2024, 2, 29, 12, tzinfo=UTC)
    assert utc(rows[3]) == datetime(2025, 3, 2, 0, 1, tzinfo=UTC)


def test_a_zone_for_times_that_name_none(spark: SparkSession) -> None:
    visits = source(time_zone="Europe/Berlin")
    texts = ["2026-07-01T14:00:00", "2026-07-01 14:00:00Z", "2026-07-01T14:00:00+05:30", "2026-03-29T02:30:00"]
    rows = parse(spark, visits, *[(f'{{"visitor": "v", "at": "{text}"}}', datetime(2027, 1, 1)) for text in texts])
    july, spring = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert [utc(row) for row in rows] == [
        july.replace(hour=12),
        july.replace(hour=14),
        july.replace(hour=8, minute=30),
        spring,  # it never was half past two: the clocks had gone forward to half past three
    ]


def test_the_append_time_as_event_time(read: Read) -> None:
    silent = source(event_time="ingested_at", columns={"visitor": "string", "n": "int"}, optional=frozenset({"n"}))
    (out,) = read(silent, '{"visitor": "v", "n": 5}')
    assert (out.value["event_time"], out.value["ingested_at"]) == ("2026-01-01T12:00:00.000000Z",) * 2
    assert out.columns == {"visitor": "v", "n": 5}
