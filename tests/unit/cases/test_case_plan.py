"""Which columns a case must name, and whether it may be moved, by the code of `step` or a plan."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.rig.samples.cases import SOURCE, SPEC
from tocsin.cases.spark.case_query import read_columns, reads_calendar
from tocsin.spark.plan_tree import Node

STEP = replace(SPEC, window=None, forget_after=timedelta(days=1))
ANY = Node("Project")


@pytest.mark.parametrize(
    ("code", "reads", "columns"),
    [
        ("gap = event.time - state.last\nif event.action == 'x':\n    state.count += 1", False, {"user_id", "action"}),
        ("if event.time.hour < 6:\n    pass", True, {"user_id"}),
        ("if event.time.weekday() > 4 and getattr(event, key):\n    pass", True, set(SOURCE.columns)),
        ("late = event.time > datetime(2026, 1, 1)", True, {"user_id"}),
    ],
)
def test_the_code_of_step_tells_what_it_reads(code: str, reads: bool, columns: set[str]) -> None:
    spec = replace(STEP, code=code)
    assert reads_calendar(ANY, spec) is reads
    assert read_columns(ANY, spec, SOURCE.columns) == columns


def column(name: str, number: int, kind: str = "string") -> Node:
    return Node("AttributeReference", {"name": name, "exprId": {"id": number}, "dataType": kind})


def alias(name: str, number: int, inner: Node) -> Node:
    return Node("Alias", {"name": name, "exprId": {"id": number}}, (inner,))


def parsed() -> Node:
    """A record with the columns 1 to 3, and the time of the event, 4."""
    record = column("tocsin_record", 0, "struct")
    names = ("user_id", "action", "amount")
    columns = [alias(name, number, Node("GetStructField", {}, (record,))) for number, name in enumerate(names, 1)]
    time = alias("event_time", 4, Node("GetStructField", {}, (record,)))
    return Node("Project", {"projectList": [*columns, time]})


def test_a_column_that_only_passes_through_decides_nothing() -> None:
    renamed = Node(
        "Project", {"projectList": [alias("what", 5, column("action", 2)), column("amount", 3)]}, (parsed(),)
    )
    assert read_columns(renamed, SPEC, SOURCE.columns) == {"user_id"}, "the entity always counts"
    repeated = Node("Expand", {"projections": [[column("amount", 3)]], "output": [column("amount", 6)]}, (renamed,))
    assert read_columns(repeated, SPEC, SOURCE.columns) == {"user_id"}, "windows that overlap repeat all columns"
    equal = Node("EqualTo", {}, (column("what", 5), Node("Literal", {"value": "x", "dataType": "string"})))
    filtered = Node("Filter", {"condition": [equal]}, (renamed,))
    assert read_columns(filtered, SPEC, SOURCE.columns) == {"user_id", "action"}
    grouped = Node("Aggregate", {"groupingExpressions": [column("amount", 3)]}, (filtered,))
    assert read_columns(grouped, SPEC, SOURCE.columns) == {"user_id", "action", "amount"}


def test_times_that_meet_only_times_may_be_moved_together() -> None:
    time, paid = column("event_time", 4, "timestamp"), column("paid_at", 5, "timestamp")
    day = Node("Literal", {"value": "2026-01-01 00:00:00", "dataType": "timestamp"})
    for inner, reads in (
        (Node("Max", {}, (time,)), False),
        (Node("LessThan", {}, (time, paid)), False),
        (Node("LessThan", {}, (time, day)), True),
        (Node("Hour", {}, (time,)), True),
        (Node("Cast", {"dataType": "string"}, (Node("Max", {}, (time,)),)), True),
    ):
        plan = Node("Project", {"projectList": [alias("x", 9, inner)]}, (parsed(),))
        assert reads_calendar(plan, SPEC) is reads, inner.kind
    assert reads_calendar(parsed(), replace(SPEC, window=timedelta(days=1), time_zone="Europe/Berlin"))
