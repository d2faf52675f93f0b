"""Raw records to events or quarantine: every kind of bad input, and that none of them kills the query."""

import base64
import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.raw_records import (
    BAD,
    EVENT,
    GOOD,
    GOOD_ONES,
    LOGINS,
    NOW,
    SCHEMA,
    TIMES,
    TYPED,
    Raw,
    Read,
    as_json,
    source,
)
from tocsin.declare.model.sizes import KEPT_BYTES
from tocsin.declare.model.source import Format
from tocsin.dev.generator import Traffic
from tocsin.ingest.parsing_rules import Reason, reason_class, rule_parts, rules_version
from tocsin.ingest.spark.envelope import OBSERVATION, observe
from tocsin.ingest.spark.parse import parsed


def test_bad_records_go_to_quarantine_with_all_reasons(read: Read) -> None:
    found = read(LOGINS, *[value for value, _ in BAD.values()])
    assert {case: out.reasons for case, out in zip(BAD, found, strict=True)} == {
        case: reasons for case, (_, reasons) in BAD.items()
    }
    assert {out.topic for out in found} == {"quarantine.logins"}


def test_good_records_become_events(read: Read) -> None:
    found = read(LOGINS, *[value for value, _ in GOOD_ONES.values()])
    assert {case: out.reasons for case, out in zip(GOOD_ONES, found, strict=True)} == {case: [] for case in GOOD_ONES}
    assert {case: out.columns for case, out in zip(GOOD_ONES, found, strict=True)} == {
        case: EVENT | columns for case, (_, columns) in GOOD_ONES.items()
    }
    assert [out.key for out in found] == [(EVENT | columns)["user_id"] for _, columns in GOOD_ONES.values()]


def test_the_envelope(read: Read) -> None:
    (_, out) = read(LOGINS, "", GOOD)
    assert (out.topic, out.key) == ("events.logins", "mallory")
    assert out.value == EVENT | {
        "raw_topic": "raw.logins",
        "raw_partition": 0,
        "raw_offset": 1,
        "event_time": "2026-01-01T11:59:59.500000Z",
        "ingested_at": "2026-01-01T12:00:00.000000Z",
        "source": "logins",
        "schema_version": 1,
    }


def test_the_quarantine_record_keeps_what_is_needed(read: Read) -> None:
    value = b"user_id: \xff" + b"x" * KEPT_BYTES
    (out,) = read(LOGINS, Raw(value, key=b"k\xfe", headers=[("trace", b"\x00\x01")]))
    assert out.key == "raw.logins/0/0"
    assert base64.b64decode(out.value.pop("payload"), validate=True) == value[:KEPT_BYTES]
    assert out.value == {
        "payload_length": len(value),
        "payload_sha256": hashlib.sha256(value).hexdigest(),
        "reasons": ["too_long"],
        "origin": {"topic": "raw.logins", "partition": 0, "offset": 0, "timestamp": "2026-01-01T12:00:00.000000Z"},
        "source": "logins",
        "schema_version": 1,
        "rules_version": rules_version(rule_parts(LOGINS)),
        "rules": rule_parts(LOGINS),
        "replays": 0,
        "raw_key": base64.b64encode(b"k\xfe").decode(),
        "raw_key_length": 2,
        "raw_key_sha256": hashlib.sha256(b"k\xfe").hexdigest(),
        "headers": [{"key": "trace", "value": "AAE="}],
        "headers_count": 1,
        "headers_length": len('[{"key":"trace","value":"AAE="}]'),
        "headers_sha256": hashlib.sha256(b'[{"key":"trace","value":"AAE="}]').hexdigest(),
    }


def test_types(read: Read) -> None:
    found = read(source(), *[as_json(**fields) for fields, _ in TYPED.values()])
    base = {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z"}
    assert {case: out.reasons or out.columns for case, out in zip(TYPED, found, strict=True)} == {
        case: [f"wrong_type:{result}"] if isinstance(result, str) else base | result
        for case, (_, result) in TYPED.items()
    }


@pytest.mark.parametrize("form", sorted({form for form, *_ in TIMES}))
def test_event_times(read: Read, form: str) -> None:
    for kind in ("timestamp", "string", "bigint", "double"):
        cases = [(value, expected) for f, k, value, expected in TIMES if (f, k) == (form, kind)]
        if not cases:
            continue
        columns = {"visitor": "string", "at": kind}
        zones = {"EST": "-05:00", "EDT": "-04:00"} if "z" in form else {}
        visits = source(columns=columns, optional=frozenset(), event_time_format=form, zone_offsets=zones)
        found = read(visits, *[json.dumps({"visitor": "v", "at": value}) for value, _ in cases])
        assert [out.value.get("event_time") for out in found] == [expected for _, expected in cases]
        assert [out.reasons for out in found] == [[] if expected else ["wrong_type:at"] for _, expected in cases]


def test_texts_that_stand_for_no_value(read: Read) -> None:
    visits = source(nulls=("N/A", "-"))
    given, key = read(visits, as_json(n=" N/A ", x="-", seen="N/A", ok=True), as_json(visitor="-"))
    assert given.columns == {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z", "ok": True}
    assert key.reasons == ["missing:visitor"]


def test_an_epoch_beyond_all_calendars_kills_nothing(read: Read) -> None:
    visits = source(event_time_format="epoch-seconds")
    numbers = [10**12, -(10**12), 2**62, 253402300800, -62135596801, 10**40]
    *bad, good = read(visits, *[as_json(at=number) for number in numbers], as_json(at=1767268799))
    assert {out.topic for out in bad} == {"quarantine.visits"}
    assert [reason_class(reason) for out in bad for reason in out.reasons] == [
        "time_ahead",
        "time_too_old",
        "wrong_type",
        "time_ahead",
        "time_too_old",
        "wrong_type",
    ]
    assert good.topic == "events.visits"


def test_regular_expressions(read: Read) -> None:
    pattern = r"(?<visitor>\S+) \[(?<at>[^\]]+)\](?: n=(?<n>-?\w*))?"
    columns = {"visitor": "string", "at": "timestamp", "n": "int", "note": "string"}
    visits = source(formats=(Format.REGEX,), patterns=(pattern,), columns=columns, optional=frozenset({"n", "note"}))
    at = "[2026-01-01T11:59:59Z]"
    found = read(visits, f"v {at} n=5", f"v {at}", f"v {at} n=", f"v {at} n=five", f"v {at} trailing", "nothing", " ")
    assert [out.reasons or out.columns.get("n") for out in found] == [
        5,
        None,
        None,
        ["wrong_type:n"],
        ["no_match"],
        ["no_match"],
        ["empty"],
    ]
    assert found[0].columns == {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z", "n": 5}


def test_regular_expressions_beside_json(read: Read) -> None:
    columns = {"visitor": "string", "at": "timestamp"}
    visits = source(
        formats=(Format.REGEX, Format.JSON),
        patterns=("(?<visitor>[a-z]+) (?<at>.+)",),
        columns=columns,
        optional=frozenset(),
    )
    found = read(visits, "v 2026-01-01T11:59:59Z", as_json(), "{", "V")
    assert [out.reasons or out.key for out in found] == ["v", "v", ["not_json"], ["no_match"]]


@pytest.mark.parametrize(("pair", "colon"), [(" ", "="), ("\t", ": "), (";", "="), (" || ", " => "), ("; ", ":")])
def test_other_separators(read: Read, pair: str, colon: str) -> None:
    fields = {"visitor": "v", "at": "2026-01-01T11:59:59Z", "n": "5"}
    visits = source(formats=(Format.KEY_VALUE,), pair_separator=pair, key_separator=colon)
    (out,) = read(visits, pair.join(f"{key}{colon}{value}" for key, value in fields.items()))
    assert out.columns == {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z", "n": 5}


def replayed(value: str, **headers: str) -> Raw:
    return Raw(
        value.encode(), headers=[(f"tocsin-{key.replace('_', '-')}", text.encode()) for key, text in headers.items()]
    )


def test_a_replay_keeps_identity_and_append_time(read: Read) -> None:
    headers = {"origin": "raw.logins/0/1", "ingested_at": "2025-12-31T11:00:00.250000Z", "replays": "2"}
    old = GOOD.replace("2026-01-01T11:59:59.5Z", "2025-12-31T10:59:59Z")
    *_, event, bad = read(LOGINS, GOOD, "bad", replayed(old, **headers), replayed("still bad", **headers))
    place = (event.value["raw_partition"], event.value["raw_offset"], event.value["ingested_at"])
    assert place == (0, 1, "2025-12-31T11:00:00.250000Z")
    assert bad.value["origin"] == {
        "topic": "raw.logins",
        "partition": 0,
        "offset": 1,
        "timestamp": "2025-12-31T11:00:00.250000Z",
    }
    assert (bad.key, bad.value["replays"], bad.reasons) == ("raw.logins/0/1", 2, ["not_key_value"])


def test_a_replay_is_judged_by_the_clock_of_its_original(read: Read) -> None:
    headers = {"origin": "raw.logins/0/0", "ingested_at": "2025-12-31T11:00:00Z", "replays": "1"}
    _, out = read(LOGINS, "bad", replayed(GOOD, **headers))
    assert out.reasons == ["time_ahead"]


FORGED: list[dict[str, str | None]] = [
    {"origin": "raw.other/0/0"},
    {"origin": "raw.logins/0"},
    {"origin": "raw.logins/x/0"},
    {"origin": "raw.logins/0/99999999999999999999"},
    {"origin": "raw.logins/3/0"},
    {"origin": "raw.logins/0/7"},
    {"origin": "raw.logins/0/77"},
    {"origin": ""},
    {"ingested_at": "yesterday"},
    {"ingested_at": "2026-01-01T12:00:01Z"},
    {"replays": "0"},
    {"replays": "many"},
    {"replays": None},
    {"ingested_at": None},
    {"origin": None},
]


def test_forged_replay_headers_are_told_and_not_believed(read: Read) -> None:
    known = {"origin": "raw.logins/0/0", "ingested_at": "2025-12-31T11:00:00Z", "replays": "1"}
    written = [{key: text for key, text in (known | change).items() if text is not None} for change in FORGED]
    _, *found = read(LOGINS, "bad", *[replayed(GOOD, **headers) for headers in written])
    assert [out.reasons for out in found] == [["bad_replay_header"]] * len(FORGED)
    assert [out.key for out in found] == [f"raw.logins/0/{offset}" for offset in range(1, len(FORGED) + 1)]


def test_other_headers_are_no_concern(read: Read) -> None:
    (out,) = read(LOGINS, Raw(GOOD.encode(), headers=[("trace", b"\xff"), ("trace", b"2")]))
    assert (out.topic, out.value["raw_offset"]) == ("events.logins", 0)


def test_the_generator_agrees_line_by_line(read: Read) -> None:
    lines = list(Traffic(start=NOW - timedelta(seconds=60), seconds=60, bad_share=0.1).lines())
    found = read(LOGINS, *[line.value for line in lines])
    assert [out.columns.get("user_id") if not out.reasons else None for out in found] == [line.user for line in lines]
    classes = [{reason_class(reason) for reason in out.reasons} for out in found]
    assert all((line.reason in told) if line.reason else not told for line, told in zip(lines, classes, strict=True))


def test_what_is_counted(spark: SparkSession) -> None:
    values = [GOOD, GOOD + " | x: 1 | user_id: v", "{}", b"\xff", "", "junk", None, '{"user_id":1,"a":1,"b":2}']
    rows = [
        (None, v.encode() if isinstance(v, str) else v, "raw.logins", 0, n, NOW, None) for n, v in enumerate(values)
    ]
    counted = observe(parsed(spark.createDataFrame(rows, SCHEMA), LOGINS))
    figures = dict.fromkeys(Reason, 0) | {
        "records": 8,
        "ignored": 0,
        "quarantined": 6,
        "missing": 2,
        "not_utf8": 1,
        "empty": 1,
    }
    figures |= {"not_key_value": 1, "no_value": 1, "unknown_fields": 3, "repeated_fields": 1, "replayed": 0}
    assert OBSERVATION == "ingest"
    assert _figures(spark, counted) == {str(name): count for name, count in figures.items()} | {
        "latest_event_time": datetime(2026, 1, 1, 11, 59, 59, 500_000)
    }


def _figures(spark: SparkSession, counted: Any) -> dict[str, Any]:
    """The figures of the last run of a frame that has an `observe()`."""
    execution = counted._jdf.queryExecution()
    execution.executedPlan().executeCollect()
    row = execution.observedMetrics().apply(OBSERVATION)
    names = list(row.schema().fieldNames())
    out: dict[str, Any] = {}
    for number, name in enumerate(names):
        value = row.get(number)
        out[name] = datetime.fromisoformat(str(value)) if name == "latest_event_time" else value
    return out
