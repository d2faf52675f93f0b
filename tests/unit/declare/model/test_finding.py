"""The identity of a finding, what travels on the findings topic, and how scores and entities are written."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.declare.model.errors import InvalidEvent
from tocsin.declare.model.finding import Finding, canonical_entity, finding_id
from tocsin.declare.model.sizes import TEXT_BYTES, entity_text, number, score_text, shortened

START = datetime(2026, 1, 2, 3, 4, 10, tzinfo=UTC)
END = START + timedelta(seconds=10)


def finding(**changes: object) -> Finding:
    identity = finding_id("d", {"user_id": "eve"}, START, END)
    values: dict[str, object] = {
        "finding_id": identity, "detector": "d", "version": "v1",
        "entity": {"user_id": "eve"}, "window_start": START, "window_end": END,
        "level": "email", "score": 51, "limit": 50,
    }  # fmt: skip
    return Finding.model_validate(values | changes)


def test_identity_is_this_and_stays_this() -> None:
    """A changed identity would ring every old finding again: this value may never change."""
    assert finding_id("failed_logins", {"user_id": "eve"}, START, END) == "973d0afac16d7dbcda747470e6746a64"


def test_identity_differs_in_each_part() -> None:
    ids = {
        finding_id("d", {"u": "a"}, START, END),
        finding_id("e", {"u": "a"}, START, END),
        finding_id("d", {"u": "b"}, START, END),
        finding_id("d", {"v": "a"}, START, END),
        finding_id("d", {"u": "a"}, START + timedelta(microseconds=1), END),
        finding_id("d", {"u": "a"}, START, END + timedelta(microseconds=1)),
        finding_id("d", {"u": "a"}, None, None),
        finding_id("d", {"u": "a"}, None, None, "raw.s/0/7"),
    }
    assert len(ids) == 8


def test_identity_does_not_depend_on_zone_or_key_order() -> None:
    elsewhere = timezone(timedelta(hours=5, minutes=30))
    one = finding_id("d", {"a": "1", "b": "2"}, START, END)
    assert one == finding_id("d", {"b": "2", "a": "1"}, START.astimezone(elsewhere), END.astimezone(elsewhere))


def test_canonical_entity_escapes_as_jackson_does() -> None:
    assert canonical_entity({"u": 'é"\\\x1f\n/'}) == '{"u":"é\\"\\\\\\u001F\\n/"}'


@given(st.text(min_size=90).map(lambda text: text * 10), st.text(max_size=3))
def test_a_long_entity_is_shortened_once_and_stays_what_it_is(user: str, end: str) -> None:
    one, other = shortened(user), shortened(user + end)
    assert len(one.encode()) <= TEXT_BYTES
    assert (shortened(one), one == other) == (one, not end)
    assert finding(entity={"user_id": user}).entity == {"user_id": one}


def test_rank_orders_by_level_then_score() -> None:
    low, high = finding(score=99), finding(level="urgent", score=51, limit=50)
    assert high.rank > low.rank > finding(score=98).rank


@given(st.dictionaries(st.text(min_size=1), st.text(), min_size=1), st.floats(allow_nan=False, allow_infinity=False))
def test_json_round_trip(entity: dict[str, str], score: float) -> None:
    whole = finding(entity=entity, score=score, evidence=[{"ip": "1.2.3.4"}], context={"n": 1}, event_time_max=START)
    assert Finding.from_record(whole.to_json(), "findings", 0, 7) == whole


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "value: Invalid JSON"),
        (b"\xff", "value: Invalid JSON"),
        (b"{}", "finding_id: Field required"),
        (finding().to_json().replace(b"51.0", b"NaN"), "score"),
        (finding().to_json().replace(b'"email"', b'"loud"'), "level"),
        (finding(evidence=list(range(10))).to_json().replace(b"[0,", b"[0,0,"), "evidence"),
    ],
)
def test_a_record_that_is_no_finding_says_where_it_is(value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=r"findings\[3\]@9: ") as caught:
        Finding.from_record(value, "findings", 3, 9)
    assert any(told.startswith(reason) for told in caught.value.reasons)


@pytest.mark.parametrize(
    ("score", "shown"),
    [(120, "120"), (1_234_567, "1,234,567"), (0.1834, "0.183"), (3.14159, "3.14"), (-2.5, "-2.50"), (1e300, "1e+300")],
)
def test_scores_are_written_as_people_write_them(score: float, shown: str) -> None:
    assert number(score) == shown


@pytest.mark.parametrize(
    ("score", "limit", "shown"),
    [(50.001, 50, "50.001"), (0.95004, 0.95, "0.95004"), (100.0004, 99.999, "100.0004"), (50.01, 50, "50.01")],
)
def test_a_score_never_reads_like_the_limit_that_it_passed(score: float, limit: float, shown: str) -> None:
    assert score_text(score, at_least=False, limit=limit) == shown


@pytest.mark.parametrize(
    ("entity", "shown"),
    [
        ({"user_id": "mallory"}, "mallory"),
        ({"ip": "10.0.0.1", "port": "22"}, "ip=10.0.0.1, port=22"),
        ({"user_id": ""}, "(empty)"),
        ({"user_id": "  ", "port": ""}, "user_id='  ', port=(empty)"),
    ],
)
def test_an_entity_of_one_column_is_its_value_and_a_blank_is_seen(entity: dict[str, str], shown: str) -> None:
    assert entity_text(entity) == shown


def test_a_lower_bound_is_marked() -> None:
    assert (score_text(120, at_least=True), score_text(0.5, at_least=False)) == ("at least 120", "0.5")
