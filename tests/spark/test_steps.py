"""`step` on a stream and on history: the same findings, which a model of its own counts."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Observation, SparkSession

from tests.spark.conftest import Feed
from tests.spark.stepping import CODE, LATENESS, SECOND, Door, StepDetector, StepStream, ticks, timeline, told, truth

pytestmark = pytest.mark.usefixtures("quick_batches")

GAPS = [0, 0.000001, 0.25, 1, 3, 9.5, 19.999999, 20, 20.000001, 31, 59.999999, 60, 75.5]
STEPS = st.lists(
    st.tuples(st.sampled_from(GAPS), st.sampled_from("abc"), st.sampled_from([0, 0, 0, 9])), min_size=1, max_size=8
)


class Streams:
    """Streams of one detector, each in folders of its own."""

    def __init__(self, spark: SparkSession, folder: Path, code: str = CODE) -> None:
        self.detector = StepDetector(spark, folder, code)
        self._spark, self._folder, self._numbers = spark, folder, itertools.count()

    def begin(self) -> StepStream:
        number = next(self._numbers)
        feed = Feed(self._spark, self._folder / f"feed{number}")
        return StepStream(self.detector, feed, self._folder / f"query{number}")


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)


@pytest.mark.parametrize(("rounds", "count"), [(1, 8), pytest.param(10, 20, marks=pytest.mark.long)])
def test_stream_and_history_find_the_same_on_random_timelines(streams: Streams, rounds: int, count: int) -> None:
    """So many timelines at a time: shuffled within the lateness, some events twice, restarted in the middle."""

    @settings(
        max_examples=rounds, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        derandomize=rounds == 1,
    )  # fmt: skip
    @given(st.lists(STEPS, min_size=count, max_size=count), st.randoms(use_true_random=False))
    def agree(all_steps: list[Any], chance: Any) -> None:
        events = [
            door for number, steps in enumerate(all_steps) for door in timeline(f"u{number}", steps, first=100 * number)
        ]
        end = max(one.at for one in events) + 100 * SECOND
        expected = truth(events, end)
        assert told(streams.detector.batch(events, 0, end + 1).collect()) == expected
        arrived = sorted(events, key=lambda one: one.at + chance.randrange(LATENESS))
        arrived = [one for door in arrived for one in [door] * chance.choice((1, 1, 1, 2))]
        size = len(arrived) // 4 + 1
        batches = [[one.record() for one in arrived[start : start + size]] for start in range(0, len(arrived), size)]
        stream, middle = streams.begin(), chance.randrange(1, len(batches))
        stream.run(batches[:middle])
        stream.run([*batches[middle:], *ticks(end)])
        assert told(stream.records) == expected

    agree()


def day_of_ann() -> list[Door]:
    steps = [(1, "a", 0), (1, "b", 0), (2, "b", 9), (1.5, "c", 0), (30, "a", 0), (3, "b", 0), (70, "c", 0), (1, "a", 0)]
    return timeline("ann", steps)


def test_each_event_may_come_in_a_batch_of_its_own_and_in_one_with_all(streams: Streams) -> None:
    events = day_of_ann()
    end = events[-1].at + 100 * SECOND
    expected = truth(events, end)
    assert len(expected) > 6
    stream = streams.begin()
    stream.run([*([one.record()] for one in events), *ticks(end)])
    assert told(stream.records) == expected
    failed = [observed for observed in stream.observed if observed["failed_in_step"]]
    (fault,) = json.loads(failed[0]["step_faults"])
    line = CODE[: CODE.index("raise")].count("\n") + 1
    assert fault == {"place": "raw.doors/0/2", "fault": f"detectors/places.py:{line}: ValueError: no such kind: 9"}
    at_once = streams.begin()
    at_once.run([[one.record() for one in reversed(events)], *ticks(end)])
    assert told(at_once.records) == expected


def test_history_is_found_piece_by_piece(streams: Streams) -> None:
    """Each piece reads as far back as the state may go, and tells of its own time alone."""
    events = day_of_ann()
    end = events[-1].at + 100 * SECOND
    expected = truth(events, end)
    edges = [0, events[1].at, events[4].at + 20 * SECOND, 60 * SECOND, events[6].at, end + 1]
    pieces = [told(streams.detector.batch(events, *edge).collect()) for edge in itertools.pairwise(edges)]
    assert sum(map(len, pieces)) == len(expected)
    assert {key: score for piece in pieces for key, score in piece.items()} == expected


def test_events_without_an_entity_or_a_score_are_counted_and_left_out(spark: SparkSession, tmp_path: Path) -> None:
    code = CODE.replace("[StepFinding(seen.changes,", "[StepFinding(None if event.kind == 1 else seen.changes,")
    detector = StepDetector(spark, tmp_path, code)
    events = timeline("ann", [(1, "a", 0), (1, "b", 1), (1, "c", 0), (1, "d", 9)])
    nobody = [Door(5 * SECOND, None, "a", 0, 50)]  # type: ignore[arg-type]  # as a sender may
    watched = Observation()
    rows = detector.batch([*events, *nobody], 0, 10 * SECOND, watched).collect()
    assert told(rows) == {("ann", 3 * SECOND, 2): 2}
    assert (watched.get["null_score"], watched.get["failed_in_step"]) == (1, 1)
