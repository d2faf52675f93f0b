"""What of a view comes from sealed days and what from the stream: each window once, and none missing unsaid."""

from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.views.view_scene import view_spec
from tocsin.history.backfill.backfill_planning import Sealed
from tocsin.history.places import begin
from tocsin.views.rebuild.rebuild_request import (
    Draft,
    HistoryPart,
    Rebuild,
    build_name,
    next_build,
    read_rebuild,
    record_begin,
    request_rebuild,
)
from tocsin.views.rebuild.rebuild_status import SEVERAL, EventStock, RebuildPlan, plan_rebuild

DAYS = [date(2026, 11, 10) + timedelta(days=number) for number in range(10)]
NOW = begin(DAYS[9]) + timedelta(hours=15)
HOUR = timedelta(hours=1)


def plan(
    sealed: Collection[int], kafka: datetime | None, *, imported: Collection[int] = (), **view: Any
) -> RebuildPlan:
    """Plan with these of DAYS sealed; the last is today."""
    stock = EventStock(
        sealed=Sealed({DAYS[number]: f"v{number}" for number in sealed}, why_not=lambda _: "is not published"),
        imported={DAYS[number] for number in imported},
        kept_from=DAYS[0],
        kafka_since=kafka,
        now=NOW,
    )
    return plan_rebuild(view_spec(**view), stock)


def test_history_gives_all_days_up_to_where_they_end_and_the_stream_the_rest() -> None:
    found = plan(range(2, 9), begin(DAYS[4]) + HOUR)
    assert found.days == {DAYS[number]: f"v{number}" for number in range(2, 9)}
    assert (found.since, found.lacking, found.why_none) == (begin(DAYS[9]), {}, "")


def test_a_day_that_is_not_sealed_is_the_streams_if_kafka_holds_it_whole() -> None:
    found = plan([0, 1, 2, 3, 4, 6, 7], begin(DAYS[3]) + HOUR)
    assert (list(found.days), found.since, found.lacking) == (DAYS[:5], begin(DAYS[5]), {})
    found = plan([0, 1, 2, 4], begin(DAYS[3]))
    assert (list(found.days), found.since, found.lacking) == (DAYS[:3], begin(DAYS[3]), {})


def test_a_day_in_the_middle_that_is_nowhere_is_named() -> None:
    found = plan([0, 1, 3, 4, 5, 6, 7, 8], begin(DAYS[5]))
    assert found.lacking == {DAYS[2]: "is not published"}
    assert (list(found.days), found.since) == ([DAYS[0], DAYS[1], *DAYS[3:9]], begin(DAYS[9]))


def test_what_lies_between_the_last_sealed_day_and_kafka_is_named() -> None:
    found = plan([0, 1, 2], begin(DAYS[4]) + 6 * HOUR)
    assert (list(found.days), found.since) == (DAYS[:3], begin(DAYS[4]) + 6 * HOUR)
    why = "Kafka has it from 06:00:00 UTC on only, and it is not published"
    assert found.lacking == {DAYS[3]: "is not published", DAYS[4]: why}


@pytest.mark.parametrize("kafka", [None, datetime(2026, 11, 1, tzinfo=UTC), begin(DAYS[3])])
def test_without_an_event_that_kafka_lacks_kafka_alone_is_read(kafka: datetime | None) -> None:
    found = plan([3, 4], kafka)
    assert (found.days, found.since, found.why_none.partition(" ")[0]) == ({}, None, "Kafka")


def test_without_a_sealed_day_or_of_several_sources_kafka_alone_is_read() -> None:
    assert "no day" in plan([], begin(DAYS[3])).why_none
    assert plan(range(9), begin(DAYS[3]), sources=("words", "lines")).why_none == SEVERAL


def test_without_windows_the_same_days_are_read_whatever_is_kept() -> None:
    windowed = plan(range(2, 9), begin(DAYS[4]) + HOUR)
    assert plan(range(2, 9), begin(DAYS[4]) + HOUR, window=None) == windowed


def test_imported_days_come_from_history_whatever_kafka_holds() -> None:
    found = plan([1, 2, 3], None, imported=[2])
    assert (list(found.days), found.since) == (DAYS[1:4], begin(DAYS[4]))
    found = plan([1, 2, 4], begin(DAYS[0]), imported=[4])
    assert (list(found.days), found.lacking) == ([DAYS[1], DAYS[2], DAYS[4]], {DAYS[3]: "is not published"})


def test_a_window_that_reaches_into_the_next_day_needs_it() -> None:
    found = plan(range(9), begin(DAYS[4]), window=20 * HOUR, slide=10 * HOUR)
    assert (list(found.days), found.since) == (DAYS[:8], begin(DAYS[8])), "those of the ninth reach into today"
    assert found.days[DAYS[0]] == "v0+v1"
    found = plan([0, 1, 3, 4, 5], begin(DAYS[4]), window=20 * HOUR, slide=10 * HOUR)
    assert found.lacking == {
        DAYS[1]: f"needs {DAYS[2]}, which is not published",
        DAYS[2]: "is not published",
    }


def test_one_day_is_not_enough_for_windows_across_midnight() -> None:
    found = plan([3], begin(DAYS[4]), window=20 * HOUR)
    assert (found.days, found.since, found.lacking) == ({}, None, {})
    assert f"{DAYS[3]} needs {DAYS[4]}, which is not published" in found.why_none


def test_no_further_back_than_the_view_keeps() -> None:
    found = plan(range(9), begin(DAYS[8]), keep=timedelta(days=3))
    assert list(found.days) == DAYS[6:9]
    found = plan(range(9), begin(DAYS[8]), window=None, keep=timedelta(days=2))
    assert list(found.days) == DAYS[5:9], "a period of two days ends up to two days after its events"
    assert "no day" in plan([0, 1], begin(DAYS[8]), keep=HOUR).why_none


def test_a_draft_goes_on_with_its_own_days_alone() -> None:
    draft = Draft("r", "b", {DAYS[0]: "v0", DAYS[1]: "v1"})
    assert draft.continues({DAYS[0]: "v0", DAYS[1]: "v1", DAYS[2]: "v2"})
    assert draft.continues({DAYS[1]: "v1"}), "the view keeps the first no longer"
    for other in ({DAYS[0]: "v0", DAYS[1]: "v1b"}, {DAYS[0]: "v0"}, {DAYS[0]: "v0", DAYS[2]: "v2"}, {DAYS[1]: "v2"}):
        assert not draft.continues(other)
    assert not Draft("r", "b", {DAYS[1]: "v1"}).continues({DAYS[0]: "v0", DAYS[1]: "v1"}), "imported since"


# --- requests ---------------------------------------------------------------------------------------------------------


def test_each_request_is_another_and_the_latest_counts(tmp_path: Path) -> None:
    first = request_rebuild(tmp_path, "word_counts")
    second = request_rebuild(tmp_path, "word_counts")
    assert first.id != second.id
    assert read_rebuild(tmp_path, "word_counts") == second
    assert read_rebuild(tmp_path, "stock") is None


def test_a_part_from_history_belongs_to_one_build_and_never_comes_back(tmp_path: Path) -> None:
    state, base = tmp_path / "state", tmp_path / "checkpoint"
    name = build_name("v1", "plan", "r", from_history=True)
    part = HistoryPart(name, datetime(2026, 11, 24, tzinfo=UTC), {})
    request_rebuild(state, "stock", Rebuild(id="r", history=part))
    request = read_rebuild(state, "stock")

    assert request is not None and request.history == part
    assert next_build(base, "v1", "plan", request) == name
    assert next_build(base, "v2", "plan", request) == build_name("v2", "plan", "r"), "the view has changed meanwhile"
    (base / name).mkdir(parents=True)
    record_begin(base, name)
    assert next_build(base, "v1", "plan", request) == name, "after a restart"
    (base / name).rmdir()
    assert next_build(base, "v1", "plan", request) == build_name("v1", "plan", "r"), "another build was there since"
