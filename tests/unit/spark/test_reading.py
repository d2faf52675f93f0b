"""What is read off checkpoints, progress events, plans as JSON, and errors: all without a JVM."""

import errno
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.checkpoints import P0, P1, batch
from tocsin.detect.spark.findings import rungs
from tocsin.platform.failures import is_disk, is_kafka, is_unwritable
from tocsin.spark.plan_tree import normalise, parse_tree
from tocsin.spark.query.checkpoint import read_committed
from tocsin.spark.query.progress import parse_progress

EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."


def test_the_position_is_that_of_the_last_committed_batch(tmp_path: Path) -> None:
    assert read_committed(tmp_path) is None
    batch(tmp_path, 9, {"events.logins": {"0": 10, "1": 0}})
    batch(tmp_path, 10, {"events.logins": {"0": 20, "1": 5}})
    batch(tmp_path, 11, {"events.logins": {"0": 30, "1": 6}}, done=False)
    assert read_committed(tmp_path) == {P0: 20, P1: 5}


def progress(**fields: Any) -> str:
    source = {"description": "KafkaV2[Subscribe[events.logins]]", "endOffset": {"events.logins": {"0": 3}},
              "latestOffset": json.dumps({"events.logins": {"0": 5}})}  # fmt: skip
    event = {"batchId": 4, "runId": "r", "numInputRows": 3, "sources": [source], "sink": {"numOutputRows": -1}}
    return json.dumps(event | fields)


def test_progress_tells_offsets_rows_and_watermark() -> None:
    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}]
    read = parse_progress(progress(stateOperators=operators, eventTime={"watermark": "2026-01-01T12:00:00.000Z"}))
    assert (read.batch_id, read.rows_in, read.rows_out, read.dropped_late) == (4, 3, 0, 3)
    assert read.watermark == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert read.end_offsets == {P0: 3}
    assert read.latest_offsets == {P0: 5}


def test_the_next_watermark_follows_the_latest_event_and_never_falls() -> None:
    noon = "2026-01-01T12:00:00.000Z"
    read = parse_progress(progress(eventTime={"watermark": noon, "max": "2026-01-01T12:00:30.500Z"}))
    assert read.next_watermark(12) == datetime(2026, 1, 1, 12, 0, 18, 500_000, tzinfo=UTC)
    assert read.next_watermark(60) == datetime(2026, 1, 1, 12, tzinfo=UTC)
    first = parse_progress(progress(eventTime={"watermark": "1970-01-01T00:00:00.000Z", "max": noon}))
    assert first.next_watermark(12) == datetime(2026, 1, 1, 11, 59, 48, tzinfo=UTC)
    assert parse_progress(progress(eventTime={"watermark": noon})).next_watermark(12) == read.watermark
    assert parse_progress(progress()).next_watermark(12) is None


def test_several_sources_count_together_and_their_watermark_is_the_one_in_force() -> None:
    read = parse_progress(progress(
        sources=[{"description": "KafkaV2[Subscribe[a]]", "endOffset": {"a": {"0": 3}}, "numInputRows": 5},
                 {"description": "KafkaV2[Subscribe[b]]", "endOffset": {"b": {"0": 8}}, "numInputRows": 4},
                 {"description": "KafkaV2[Subscribe[a]]", "endOffset": {"a": {"0": 2}}, "numInputRows": 5}],
        numInputRows=9, observedMetrics={"ticks:a": {"ticks": 2}, "ticks:b": {"ticks": 3}},
        eventTime={"watermark": "2026-01-01T12:00:00.000Z", "max": "2026-01-01T12:30:00.000Z"},
    ))  # fmt: skip
    assert read.end_offsets == {"a/0": 2, "b/0": 8}
    assert read.rows_in == 4
    assert read.next_watermark(12) == datetime(2026, 1, 1, 12, tzinfo=UTC), "the other source may be behind"


def attribute(name: str, number: int) -> dict[str, Any]:
    identity = {"product-class": EXPRESSIONS + "ExprId", "id": number, "jvmId": f"jvm{number}"}
    return {"class": EXPRESSIONS + "AttributeReference", "num-children": 0, "name": name, "exprId": identity}


def plan(first: int, literal: str = "x") -> str:
    equal = {"class": EXPRESSIONS + "EqualTo", "num-children": 2, "left": 0, "right": 1}
    constant = {"class": EXPRESSIONS + "Literal", "num-children": 0, "value": literal, "dataType": "string"}
    compared = [equal, attribute("a", first), constant]
    relation = {"class": "org.Relation", "num-children": 0, "output": [[attribute("a", first)]], "source": f"at{first}"}
    return json.dumps([{"class": "org.Filter", "num-children": 1, "condition": compared, "child": 0}, relation])


def test_a_tree_is_read_from_pre_order() -> None:
    tree = parse_tree(plan(7))
    assert [node.kind for node in tree.walk()] == ["Filter", "Relation"]
    (condition,) = tree.expressions("condition")
    assert [node.kind for node in condition.walk()] == ["EqualTo", "AttributeReference", "Literal"]
    assert condition.children[0].name == "a"
    assert condition.children[0].identity == 7


def test_normalised_plans_differ_in_meaning_alone() -> None:
    assert normalise(parse_tree(plan(7))) == normalise(parse_tree(plan(99)))
    assert normalise(parse_tree(plan(7))) != normalise(parse_tree(plan(7, literal="y")))


def test_rungs_begin_at_the_crossing_and_thin_out() -> None:
    first = [rung for rung, _ in zip(rungs(100), range(4), strict=False)]
    assert first == [101, 111, 122, 134]
    assert [rung for rung, _ in zip(rungs(2.5), range(4), strict=False)] == [3, 4, 5, 6], "a limit between two counts"
    all_rungs = list(rungs(100))
    assert len(all_rungs) < 200
    assert all(after <= before * 1.1 + 1 for before, after in pairwise(all_rungs))


@pytest.mark.parametrize(
    ("text", "kafka", "disk"),
    [
        ("java.io.IOException: No space left on device", False, True),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout", True, False),
        ("java.lang.ArithmeticException: / by zero", False, False),
    ],
)
def test_errors_are_told_apart_by_what_to_do(text: str, kafka: bool, disk: bool) -> None:
    assert (is_kafka(text), is_unwritable(text)) == (kafka, disk)


def test_a_full_disk_is_told_from_a_missing_file() -> None:
    assert is_disk(OSError(errno.ENOSPC, "full"))
    assert not is_disk(FileNotFoundError(errno.ENOENT, "gone"))
