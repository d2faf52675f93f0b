"""What benchmarks compute: the score of Numenta's, where a curve bends, and what a change of readers costs."""

import json
import math
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bench.growth import FILE, PICTURE, Point, _slopes, picture
from bench.nab import PROFILES, Profile, Series, normalised, read_series
from bench.rescale_figures import HandOut, ReaderChange, ShownRow, count_twice, share, steps_of
from tocsin.setup.paths import here

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


def test_the_picture_in_the_docs_is_drawn_from_the_figures_beside_it() -> None:
    root = here().root
    assert (root / PICTURE).read_text(encoding="utf-8") == picture(root / FILE)


def test_a_curve_bends_where_one_more_takes_twice_what_it_took_at_first() -> None:
    cpu = {1: 10.0, 2: 12.0, 4: 17.0, 8: 37.0}
    points = [Point("detectors", size, value, 0, 1, 1) for size, value in cpu.items()]
    points += [Point("days", 1, 900.0, 0, 1, 1)]
    assert [slope for _, slope in _slopes(points)] == ["", "2", "2.5", "5 bends", ""]


def test_records_that_were_handed_out_again_are_counted_each_time() -> None:
    notes = [
        HandOut("a", 1.0, 0, 0, 9),
        HandOut("b", 2.0, 0, 5, 14),  # 5 to 9 again
        HandOut("c", 3.0, 0, 7, 8),  # and 7 and 8 once more
        HandOut("a", 1.0, 1, 0, 9),
        HandOut("a", 2.0, 1, 10, 19),
    ]
    assert count_twice(notes) == 5 + 2
    assert count_twice([]) == 0


def test_a_step_tells_what_moved_and_how_late_rows_were() -> None:
    changes = [ReaderChange(0.0, "start", 1), ReaderChange(10.0, "add", 2), ReaderChange(20.0, "kill", 1)]
    notes = [
        *(HandOut("a", 5.0, partition, 0, 9) for partition in range(3)),
        HandOut("a", 10.5, 1, 10, 14),  # still the old one
        HandOut("b", 12.0, 1, 15, 19),
        HandOut("b", 13.0, 2, 10, 19),
        HandOut("a", 15.0, 0, 10, 19),
        HandOut("b", 16.0, 1, 20, 29),
        HandOut("a", 26.0, 2, 20, 29),
        HandOut("a", 27.0, 1, 30, 39),
    ]
    rows = [ShownRow(1.0, 1.5), *(ShownRow(11.0, 11.0 + late) for late in (0.1, 0.2, 0.4)), ShownRow(25.0, 29.0)]
    start, add, kill = steps_of(changes, notes, rows)
    assert (start.partitions_moved, start.first_seconds, start.records, start.p50_seconds) == (0, None, 1, 0.5)
    assert (add.partitions_moved, add.first_seconds, add.last_seconds) == (2, 2.0, 3.0)
    assert (add.records, add.p50_seconds, add.p99_seconds, add.max_seconds) == (3, 0.2, 0.4, 0.4)
    assert (kill.partitions_moved, kill.first_seconds, kill.last_seconds, kill.max_seconds) == (2, 6.0, 7.0, 4.0)


def test_a_share_of_few_values_is_one_of_them() -> None:
    assert share([], 0.5) is None
    assert [share([1.0, 2.0, 3.0, 4.0], part) for part in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 4.0, 4.0]
