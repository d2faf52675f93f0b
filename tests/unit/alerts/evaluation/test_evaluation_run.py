"""Which of all scores are looked at one by one, and where a picture of them fits."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.rig.samples.backfills import SPEC
from tests.unit.alerts.scene import NOON
from tocsin import lab
from tocsin.alerts.evaluation import evaluation_run
from tocsin.alerts.evaluation.evaluation_run import draw_evaluation, highest_scores
from tocsin.alerts.evaluation.scoring import Label, Labels, evaluate
from tocsin.declare.model.detector import Levels

END = NOON + timedelta(seconds=10)


def table(*scores: float) -> pa.Table:
    names = {"user_id": [f"u{n}" for n in range(len(scores))], "window_start": [NOON] * len(scores)}
    return pa.table(names | {"window_end": [END] * len(scores), "score": list(scores)})


@pytest.mark.parametrize(("limit", "expected"), [(50, [5, 9, 60]), (5, [5, 9, 60]), (4, [4, 5, 9, 60])])
def test_the_highest_scores_are_taken_and_all_findings(
    monkeypatch: pytest.MonkeyPatch, limit: float, expected: list[float]
) -> None:
    monkeypatch.setattr(evaluation_run, "MOST_SCORES", 3)
    found = highest_scores(table(1, 9, 60, 4, 5), replace(SPEC, levels=Levels(email=limit)))
    assert sorted(window.score for window in found) == expected
    assert {(window.key, window.start, window.end) for window in found} >= {('{"user_id":"u2"}', NOON, END)}


@pytest.mark.parametrize("scores", [(7.0,), (0.0, 0.0), (-3.0, -1.0), (0.001, 1e9)])
def test_any_scores_fit_into_the_picture(scores: tuple[float, ...]) -> None:
    windows = highest_scores(table(*scores), SPEC)
    known = Labels([Label(windows[0].key, NOON, END)], is_complete=True)
    ladder = evaluate(windows, known, [-5, 0, 50], SPEC.dedup_period, 1)
    assert draw_evaluation(windows, {"email": 50}, ladder).getcolors(1_000_000)
    assert draw_evaluation(windows, {}, evaluate(windows, Labels(), [0], SPEC.dedup_period, 1)).size == (900, 860)


def test_incidents_outside_of_the_days_do_not_count_as_missed_in_the_workbench(tmp_path: Path) -> None:
    early = NOON - timedelta(days=5)
    lines = [f"u0,{time.isoformat()},{(time + timedelta(hours=1)).isoformat()}" for time in (early, NOON)]
    (tmp_path / "incidents.csv").write_text("\n".join(["entity,from,to", *lines]))
    found = lab.Scores(SPEC, table(60), [NOON.date()], {}).limits(tmp_path / "incidents.csv")
    assert [*found["recall"]][:1] == [1.0]
