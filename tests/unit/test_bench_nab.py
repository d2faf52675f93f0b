"""The scorer of the Numenta Anomaly Benchmark; that it repeats published scores is asserted by the benchmark itself."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bench.nab import PROFILES, Profile, Series, normalised, read_series

BEGIN = datetime(2026, 1, 1)
TIMES = [BEGIN + timedelta(minutes=row) for row in range(100)]
TWO = Series("a/two.csv", TIMES, [0.0] * 100, [(20, 29), (60, 69)])
STANDARD = PROFILES[0]


def sigmoid(place: float) -> float:
    return 2 / (1 + math.exp(5 * place)) - 1


MIDDLE = sigmoid(-0.5) / sigmoid(-1)
BEHIND = sigmoid(1)


@pytest.mark.parametrize(
    ("rows", "raw"),
    [
        ([], {"missed": 2}),
        ([20, 60], {"found": 2}),
        ([20, 25, 29, 60, 61], {"found": 2}),  # the first in a window counts
        ([25, 65], {"found": 2 * MIDDLE}),
        ([20], {"found": 1, "missed": 1}),
        ([0, 14], {"missed": 2}),  # the first 15 % are for learning
        ([15], {"missed": 2, "false": 1}),  # no window before it: the whole cost
        ([20, 38, 60], {"found": 2, "false": -BEHIND}),  # a window's length behind it
        ([20, 58, 60], {"found": 2, "false": 1}),  # more than three of them
        ([20, 60, 99, 99], {"found": 2, "false": 2}),
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_alarms_are_scored_by_the_published_rule(rows: list[int], raw: dict[str, float], profile: Profile) -> None:
    score = raw.get("found", 0) - profile.missed * raw.get("missed", 0) - profile.false * raw.get("false", 0)
    expected = 100 * (score + 2 * profile.missed) / (2 + 2 * profile.missed)
    assert normalised([TWO], {TWO.name: rows}, profile) == pytest.approx(expected)


def test_weights_of_the_profiles_and_the_ends_of_the_scale() -> None:
    assert [normalised([TWO], {TWO.name: [20, 60]}, profile) for profile in PROFILES] == [100, 100, 100]
    assert [normalised([TWO], {TWO.name: []}, profile) for profile in PROFILES] == [0, 0, 0]
    assert [normalised([TWO], {TWO.name: [15]}, one) for one in PROFILES] == pytest.approx([-2.75, -5.5, -11 / 6])
    none = Series("a/none.csv", TIMES, [0.0] * 100, [])
    alarms = {TWO.name: [20, 60], none.name: [50]}  # a file without windows counts with its false alarms
    assert normalised([TWO, none], alarms, STANDARD) == pytest.approx(97.25)


def test_windows_are_read_as_rows(tmp_path: Path) -> None:
    for name in ("b/x.csv", "a/y.csv"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        rows = "".join(f"2026-01-01 00:0{minute}:00,{minute / 2}\n" for minute in (0, 1, 2, 2, 3))
        (tmp_path / "data" / name).write_text(f"timestamp,value\n{rows}")
    (tmp_path / "labels").mkdir()
    windows = {"b/x.csv": [["2026-01-01 00:01:00.000000", "2026-01-01 00:03:00.000000"]], "a/y.csv": []}
    (tmp_path / "labels" / "combined_windows.json").write_text(json.dumps(windows))
    empty, one = read_series(tmp_path)
    assert (empty.name, empty.windows, one.name, one.windows) == ("a/y.csv", [], "b/x.csv", [(1, 4)])
    assert one.values == [0, 0.5, 1, 1, 1.5]
    assert [found.name for found in read_series(tmp_path, ("b/",))] == ["b/x.csv"]
