from __future__ import annotations

from bench.rescale_figures import HandOut, ReaderChange, ShownRow, count_twice, share, steps_of


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
