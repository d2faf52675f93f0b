"""Times in samples: known whole, or refused with the reason."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.scaffold import source_text
from tocsin.declare.source_file import read_source
from tocsin.ingest.replay.shifted_lines import LineTimes
from tocsin.ingest.sampling.known_times import find_time
from tocsin.ingest.sampling.sample import read_schema
from tocsin.ingest.sampling.written_form import UnclearTime

MOMENT = datetime(2025, 11, 26, 21, 8, 5, 123_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("lines", "form"),
    [
        (["[Sun Dec 04 04:47:44 2005] [notice] ok", "[Mon Dec 05 04:47:44 2005] x"], "EEE MMM [ ]d HH:mm:ss yyyy"),
        (["Thu Nov  6 21:28:25 UTC 2025 x"], "EEE MMM [ ]d HH:mm:ss 'UTC' yyyy"),
        (["Thu, 6 Nov 2025 21:28:25 +0000 (UTC) x"], "EEE, d MMM yyyy HH:mm:ss Z"),
        (["Sunday, 04-Dec-05 04:47:44 GMT x"], "EEEE, dd-MMM-yy HH:mm:ss 'GMT'"),
        (["2023-04-23 22:07:05.311 -05:00 [WRN] x"], "yyyy-MM-dd HH:mm:ss.SSS XXX"),
        (["2023-04-23T22:07:05+05 x"], "yyyy-MM-dd'T'HH:mm:ssX"),
        (["Sat Nov 28 11:56:50 2020: DEBUG: x"], "EEE MMM [ ]d HH:mm:ss yyyy"),
        (["Nov 28 2020 11:56:50: %ASA-6-302013: x"], "MMM [ ]d yyyy HH:mm:ss"),
        (["2023-04-23 22:07:05,311 x", "2023-04-23 22:07:05,312 x"], "yyyy-MM-dd HH:mm:ss,SSS"),
        (["20171223-22:15:35:11|A", "20171223-22:16:0:7|A"], "yyyyMMdd-H:m:s:SSS"),
        (["Nov  4 21:28:25 host x"], "syslog"),
        (["Nov  4 2025 21:28:25 host x"], "MMM [ ]d yyyy HH:mm:ss"),
        (["Jun 15, 2025 9:00:00 AM com.foo"], "MMM [ ]d, yyyy h:mm:ss a"),
        (["26-NOV-25 09.28.25.123456 PM x"], "d-MMM-yy hh.mm.ss.SSSSSS a"),
        (["11/20/2025 10:00:00 x"], "M/d/yyyy HH:mm:ss"),
        (["12/01/2025 10:00 x", "12/02/2025 10:00 x", "12/03/2025 10:00 x"], "M/dd/yyyy HH:mm"),
        (["2015-10-18 18:01:47.5 x", "2015-10-18 18:01:47.123456 x", "2015-10-18 18:01:47 x"], "iso8601"),
        (["1066036250.603 1 192.0.2.1 TCP"], "epoch-seconds"),
        (["1767268799000 x"], "epoch-milliseconds"),
        (["1767268799000001 x"], "epoch-microseconds"),
        (["<13>1767268799000 x until 2025-01-01 10:00:00"], "epoch-milliseconds"),
        (["a,1767268799 until 2025-01-01 10:00:00"], "epoch-seconds"),
        (["1767268799000001999 x"], "epoch-nanoseconds"),
        (["- 1117838570 2005.06.03 R02 2005-06-03-15.42.50.363779 R02"], "epoch-seconds"),
    ],
)
def test_a_time_is_known_with_all_its_parts(lines: list[str], form: str) -> None:
    found = find_time(lines)
    assert found is not None
    assert found.form == form


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["10/11/2025 10:00:00 x"], "can be read as M/d/yyyy or d/M/yyyy"),
        (["17/06/09 20:10:40 x"], "can be read as yy/M/d or d/M/yy"),
        (["2025-04-03 22:32:14.322 EST x"], "the times name the zone EST, and such names mean different things"),
        (
            ["2025-04-03 22:32:14 EDT x", "2025-12-03 22:32:14 EST x"] * 2,
            "the times name the zone EDT or EST, and such",
        ),
        (["2025-04-03 22:32:14 Europe/Berlin x"], "'Europe/Berlin' beside '2025-04-03 22:32:14' looks like a part"),
        (["2025-04-03 22:32:14 +01:00 x", "2025-04-03 22:32:14 x"], "the times are written in 2 forms"),
        (["2025-12-04 Sun 04:47:44 since 2006-01-01T10:00:00Z"], "'2025-12-04' stands before the time"),
        (["2025-10-01 10:00:00.5 x", "2025-10-01 10:00:00.10 x"], "may be a fraction or milliseconds"),
        (["2025-10-01 10:00:00 a.m. x"], "'a.m.' beside"),
        (["2 Jun 23 21:48:59 x"], "can be read as d MMM yy or MMM d"),
        (["a 2026-146T18:33:57 until 2025-01-01 10:00:00"], "'2026-146T18:33:57' stands before the time"),
        (["2025-10-01 10:00:00+1 x"], "'[+]1' beside"),
        (["2025-10-01 10:00:00\u221205:00 x"], "'\u22120' beside"),
        (["1/31/2025, 10:00:00\u202fPM x"], "'PM' beside"),
        (["31/1/2025 10:00:00 p.\xa0m. x"], "'p.\xa0m.' beside"),
        (["[2025-10-01 10:00:00] [UTC+1] x"], r"'\] \[UTC' beside"),
        (["2025-10-01 10:00:00;CET;x"], "';CET' beside"),
        (["2025-10-01 10:00:00 MESZ x"], "the times name the zone MESZ"),
        (["[2024] Nov 24 10:00:00 x"], "'2024\\]' beside"),
        (["2025-10-01 10:00:00'123 x"], "''1' beside"),
        (["Nov 28 11:56:50 2020-05:00 x"], "'2020' beside"),
        (["Nov 28 11:56:50, 2020 x"], "', 2020' beside"),
        (["1000000001 2025-10-01 10:00:00 x"], "'1000000001' stands before the time"),
        (["id 1300000000007|2025-10-01 10:00:00"], "'1300000000007' stands before the time"),
    ],
)
def test_what_is_not_known_whole_is_refused(lines: list[str], told: str) -> None:
    with pytest.raises(UnclearTime, match=told):
        find_time(lines)


@pytest.mark.parametrize(
    "line",
    ["10:00:00 x", "2026-W05-1T10:00:00 x", "2026-031T10:00:00Z x", "1234567890123456789012 x", "251126:21:08:05 x"],
)
def test_no_time_is_made_of_a_part(line: str) -> None:
    assert find_time([line]) is None


DATES = [
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d/%b/%Y",
    "%b %d %Y",
    "%d %B %Y",
    "%a %b %d",
    "%b %d",
    "%m/%d/%Y",
    "%y%m%d",
    "%Y%m%d",
    "%d.%m.%Y",
]
CLOCKS = ["%H:%M:%S", "%I:%M:%S %p", "%H%M%S", "%H.%M.%S", "%H:%M"]
FRACTIONS = ["", ".123", ",123", ".123000", ":123"]
ZONES = [("", 0), ("Z", 0), (" UTC", 0), ("+0530", 330), (" -05:00", -300), ("+05", 300), (" (GMT)", 0), (" EST", -300)]


BETWEEN = [" ", "T", ":", "_", ", ", " - ", " at "]
AROUND = ["{} user=a x", "[{}] user=a x", "{}|user|x y", "h1 {} user=b x"]


@settings(max_examples=80, deadline=None)
@given(
    parts=st.tuples(*map(st.sampled_from, (DATES, BETWEEN, CLOCKS, FRACTIONS, ["", " 2025"], AROUND))),
    zone=st.sampled_from(ZONES),
    days=st.lists(st.integers(0, 300), min_size=1, max_size=5),
)
@example(parts=("%y%m%d", ":", "%H:%M:%S", "", "", AROUND[0]), zone=("", 0), days=[0])
def test_a_time_of_any_form_is_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: tuple[str, ...], zone: tuple[str, int], days: list[int]
) -> None:
    date, between, clock, fraction, tail, around = parts
    name, minutes = zone
    folder = tmp_path_factory.mktemp("forms")
    moments = [MOMENT - timedelta(days=day) for day in days]
    texts = [
        f"{(moment + timedelta(minutes=minutes)).strftime(date + between + clock)}{fraction}{name}{tail}"
        for moment in moments
    ]
    sample, file = folder / "sample.log", folder / "guessed.toml"
    sample.write_text("".join(around.format(text) + "\n" for text in texts))
    try:
        file.write_text(source_text("guessed", read_schema(sample), "a@example.com"))
    except ConfigError:
        return
    times = LineTimes(read_source(file))
    has_year = "%y" in date.lower() or tail
    for text, moment in zip(texts, moments, strict=True):
        exact = moment.replace(microsecond=123_000 if fraction else 0, second=0 if clock == "%H:%M" else moment.second)
        found = times.find(around.format(text).encode()).moment.astimezone(UTC)
        if has_year:
            assert found == exact, (text, file.read_text())
        else:
            assert found.strftime("%m %d %H %M %S %f") == exact.strftime("%m %d %H %M %S %f")
