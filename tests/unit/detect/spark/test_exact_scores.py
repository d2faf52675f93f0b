"""Which windows with lower bounds are due, and that none is forgotten."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rig.waiting import awaited
from tocsin.detect.spark import exact_scores
from tocsin.detect.spark.exact_scores import ExactScores, OpenWindows

T0 = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = timedelta(seconds=10)
SPEC: Any = SimpleNamespace(name="failed_logins", version="v1", window=WINDOW, time_zone="")
RUN: Any = SimpleNamespace(spark=None, reporter=SimpleNamespace(leads=True))


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def spanning(start: float, end: float) -> OpenWindows:
    return OpenWindows(version="v1", start=at(start), end=at(end))


def figures(start: float, end: float) -> dict[str, Any]:
    micros = [int(at(seconds).timestamp() * 1e6) for seconds in (start, end)]
    return {"null_entity": 0, "above_start": micros[0], "above_end": micros[1]}


class Scores(ExactScores):
    """Computes nothing, but remembers what it was to compute, and fails as often as it is told."""

    def __init__(self, folder: Path, version: str = "v1", failures: int = 0) -> None:
        spec: Any = SimpleNamespace(**vars(SPEC) | {"version": version})
        super().__init__(None, spec, None, folder)  # type: ignore[arg-type]  # what it computes with
        self.computed: list[OpenWindows] = []
        self.failures = failures

    def _write(self, spark: Any, closed: OpenWindows) -> int:
        self.computed.append(closed)
        if len(self.computed) <= self.failures:
            raise RuntimeError("no slot")
        return 1

    def rest(self) -> None:
        """Look until nothing runs."""

        def rests() -> bool:
            self.look(RUN)
            return self._thread is None

        assert awaited(rests, 10)


@pytest.mark.parametrize(
    ("watermark", "closed", "left"),
    [(9.0, None, (0, 30)), (10.0, (0, 10), (0.000001, 30)), (25.0, (0, 25), (15.000001, 30)), (30.0, (0, 30), None)],
)
def test_windows_are_due_when_they_have_closed(watermark: float, closed: Any, left: Any) -> None:
    expected = tuple(None if span is None else spanning(*span) for span in (closed, left))
    assert spanning(0, 30).split(at(watermark), SPEC) == expected


def test_what_a_batch_saw_is_due_at_the_watermark_and_is_taken_out_of_the_figures(tmp_path: Path) -> None:
    scores, seen = Scores(tmp_path), figures(0, 10)
    scores.note_batch(seen, at(9))
    assert seen == {"null_entity": 0}
    scores.rest()
    assert scores.computed == []
    scores.note_batch({}, at(10))
    scores.rest()
    assert scores.computed == [spanning(0, 10)]
    assert list(tmp_path.iterdir()) == []


def test_the_next_process_goes_on_with_what_was_open(tmp_path: Path) -> None:
    """It may have started before: beside the one that has found it."""
    before, again = Scores(tmp_path), Scores(tmp_path)
    before.note_batch(figures(0, 10), at(9))
    again.begin({}, None, b"code")
    again.note_batch({}, at(10))
    again.rest()
    assert again.computed == [spanning(0, 10)]


def test_a_kill_behind_a_batch_that_was_not_noted_forgets_nothing(tmp_path: Path) -> None:
    again = Scores(tmp_path)
    again.begin({}, None, b"code", unnoted_from=at(-10))
    again.note_batch({}, at(10))
    again.rest()
    assert again.computed == [spanning(-10, 10)]


def test_a_kill_while_it_computes_forgets_nothing(tmp_path: Path) -> None:
    scores = Scores(tmp_path)
    scores.note_batch(figures(0, 10), at(10))
    scores.look(RUN)
    scores.note_batch(figures(20, 30), at(21))
    again = Scores(tmp_path)
    again.begin({}, None, b"code")
    assert again._open == spanning(0, 30)


def test_another_version_leaves_it_to_the_nightly_backfill(tmp_path: Path) -> None:
    Scores(tmp_path).note_batch(figures(0, 10), at(9))
    other = Scores(tmp_path, "v2")
    other.begin({}, None, b"code")
    other.note_batch({}, at(10))
    other.rest()
    assert other.computed == []


def test_a_failure_is_tried_again_and_not_for_ever(tmp_path: Path) -> None:
    scores = Scores(tmp_path, failures=1)
    scores.note_batch(figures(0, 10), at(10))
    scores.rest()
    assert scores.computed == 2 * [spanning(0, 10)]
    hopeless = Scores(tmp_path, failures=9)
    hopeless.note_batch(figures(0, 10), at(10))
    hopeless.rest()
    assert len(hopeless.computed) == 3


def test_scores_are_made_exact_by_the_version_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[Any] = []

    def find(*arguments: Any) -> Any:
        ranges.append(arguments[-1])
        raise RuntimeError("enough")

    scores = ExactScores(None, SPEC, [], tmp_path)  # type: ignore[arg-type]  # nothing is read
    monkeypatch.setattr(exact_scores, "find_in_range", find)
    monkeypatch.setattr(scores, "_lower_bounds", lambda closed: {"id": T0})
    scores.begin({}, None, b"the code that runs, whatever the file holds by now")
    scores.note_batch(figures(0, 10), at(11))
    scores.look(RUN)
    assert awaited(lambda: bool(ranges), 10)
    assert ranges[0].text == b"the code that runs, whatever the file holds by now"
