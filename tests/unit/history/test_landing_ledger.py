from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import DAY, NOON, entry, imported, ledger
from tests.rig.samples.sealed_days import landed
from tocsin.declare.settings import Settings
from tocsin.history.landing_ledger import BrokenLedger, Quarantined, forget, read_ledger, record, sweep
from tocsin.history.places import Places, stamp
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.quality.day_facts import Hole

HOUR = timedelta(hours=1)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, "logins")


def test_what_was_recorded_is_read_imports_first_then_runs_in_their_order(places: Places) -> None:
    entries = [entry("r2", DAY, at=1), entry("r1", DAY), imported("import-1", DAY)]
    for one in entries:
        record(places, one)
    found = read_ledger(places)
    assert found.entries == (entries[2], entries[1], entries[0])
    assert (found.last, found.first) == (entries[0], entries[1])
    assert found.runs(DAY) == {"r1", "r2", "import-1"}
    assert sum(file.total for file in found.files(DAY)) == 3
    forget(places, entries[1])
    assert read_ledger(places).runs(DAY) == {"r2", "import-1"}


def test_an_entry_that_cannot_be_read_stops_everything_and_is_named(places: Places) -> None:
    record(places, entry("r1", DAY))
    path = places.ledger / "r1.json"
    write_whole(path, path.read_text()[:50])
    with pytest.raises(BrokenLedger, match=r"r1\.json cannot be read"):
        read_ledger(places)


def test_a_draft_of_an_entry_is_none(places: Places) -> None:
    record(places, entry("r1", DAY))
    write_whole(places.ledger / ".r2.json.abcd", "{")
    assert len(read_ledger(places).entries) == 1


def test_what_went_to_quarantine_is_added_up_over_the_runs(places: Places) -> None:
    counts = [{DAY: 3}, {DAY: 2, DAY + timedelta(days=1): 1}]
    for number, days in enumerate(counts):
        one = entry(f"r{number}", DAY, at=number)
        record(places, one.model_copy(update={"quarantined": Quarantined(positions={0: number}, days=days)}))
    record(places, imported("import-1", DAY))
    found = read_ledger(places)
    assert [found.quarantined(DAY + timedelta(days=n)) for n in (-1, 0, 1)] == [0, 5, 1]


def test_breaks_between_runs_are_found() -> None:
    assert ledger(entry("r1", DAY), entry("r2", DAY, at=1)).breaks() == []
    (told,) = ledger(entry("r1", DAY), entry("r2", DAY, at=5)).breaks()
    assert told == "run r2 begins partition 0 at offset 5, not at 1"


def test_read_through_is_the_oldest_of_the_newest_ticks_and_unknown_without_one() -> None:
    assert ledger(entry("r1")).read_through == NOON
    assert ledger().read_through is None
    one = entry("r1")
    silent = one.partitions[0].model_copy(update={"newest_tick": None})
    assert ledger(one.model_copy(update={"partitions": one.partitions | {1: silent}})).read_through is None
    later = one.partitions[0].model_copy(update={"newest_tick": NOON + HOUR})
    assert ledger(one.model_copy(update={"partitions": one.partitions | {1: later}})).read_through == NOON


def test_a_hole_concerns_the_days_in_which_it_was_written() -> None:
    begin = datetime(2026, 11, 19, tzinfo=UTC)
    spans = {
        "before": (begin - 2 * HOUR, begin - HOUR),
        "into": (begin - HOUR, begin + HOUR),
        "within": (begin + HOUR, begin + 2 * HOUR),
        "grace": (begin + 24 * HOUR + HOUR / 2, begin + 30 * HOUR),
        "behind": (begin + 26 * HOUR, begin + 30 * HOUR),
        "unknown": (None, None),
    }
    for name, (after, before) in spans.items():
        hole = Hole(from_offset=1, to_offset=4, removed=True, after=after, before=before)
        found = ledger(entry("r1", DAY, holes=[hole])).partitions(DAY, HOUR)[0]
        assert found.rows == 1
        assert bool(found.holes) == (name not in ("before", "behind")), name


def test_imported_rows_belong_to_no_partition() -> None:
    assert ledger(imported("import-1", DAY)).partitions(DAY, HOUR) == {}


def test_names_of_runs_sort_by_time_even_if_the_clock_goes_back() -> None:
    first = stamp(NOON)
    assert first == "20261120T120000000Z"
    assert stamp(NOON, first) == "20261120T120000001Z"
    assert stamp(NOON - HOUR, first) == "20261120T120000001Z"
    assert stamp(NOON + HOUR, first) == "20261120T130000000Z"


def test_a_ledger_that_is_gone_is_no_reason_to_remove_what_has_landed(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    places = Places.of(settings, "logins")
    landed(settings, "r1", 5)
    landed(settings, "r2", 2, at=5)
    for file in places.ledger.glob("*"):
        file.unlink()
    with pytest.raises(BrokenLedger, match="holds nothing, though several runs have landed"):
        sweep(places, read_ledger(places))
    assert [run for _, run, _ in places.landed_folders()] == ["r1", "r2"]
    remove_tree(places.landed(DAY, "r1"))
    sweep(places, read_ledger(places))
    assert list(places.landed_folders()) == [], "the first run was killed"
