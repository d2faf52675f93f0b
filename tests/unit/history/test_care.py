import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import DAY, day_rows, imported, judged
from tests.rig.samples.sealed_days import LOGINS, landed, seal_day, sealed
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.history.care import accept, roll_back, verify, withdraw
from tocsin.history.day_rows import DayRows
from tocsin.history.day_status import DayState, list_days
from tocsin.history.day_table import DayTable
from tocsin.history.landing_ledger import record
from tocsin.history.parquet_files import digest
from tocsin.history.places import IMPORTED, Places, begin
from tocsin.history.sealing import seal
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.quality.verdict_files import INDEX, Records, VerdictRecord


@pytest.fixture
def places(settings: Settings) -> Places:
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    landed(settings, "r2", 2, at=5)
    sealed(settings, "v2", 7)
    return Places.of(settings, "logins")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _turn_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[50] ^= 255
    path.write_bytes(content)


def _sealed(places: Places, version: str = "v2") -> Path:
    (path,) = places.version(DAY, version).glob("*.parquet")
    return Path(str(path))


def _landed(places: Places, run: str) -> Path:
    (path,) = places.landed(DAY, run).glob("*.parquet")
    return Path(str(path))


def _published(settings: Settings) -> dict[date, str]:
    with DayTable(settings, LOGINS) as table:
        return table.published()


def _forget(places: Places) -> None:
    with DayTable(Settings(state=places.root.parent), LOGINS) as table:
        table.publish(DAY, "v2", [], {})


def _lose_row(places: Places) -> None:
    day_rows(Settings(state=places.root.parent)).remove(DAY, "v2")


DAMAGES: dict[str, tuple[Callable[[Places], object], str]] = {
    "cut": (lambda p: _cut(_sealed(p)), "bytes, not"),
    "gone": (lambda p: _sealed(p).unlink(), "is gone"),
    "stranger": (lambda p: shutil.copy(_sealed(p), _sealed(p).with_name("b.parquet")), "does not belong there"),
    "version": (_lose_row, "seal 2026-11-19 again"),
    "landed": (lambda p: _cut(_landed(p, "r1")), "bytes, not"),
    "garbage": (lambda p: _landed(p, "r1").write_bytes(b"x" * _landed(p, "r1").stat().st_size), "not a Parquet file"),
    "table": (_forget, "missing in the catalogue"),
}


def test_what_is_whole_has_no_fault_also_when_landed_files_are_removed(settings: Settings, places: Places) -> None:
    assert verify(settings, LOGINS, checksums=True) == []
    remove_tree(places.landed(DAY, "r1"))
    assert verify(settings, LOGINS, checksums=True) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_told_with_its_place(damage: str, settings: Settings, places: Places) -> None:
    harm, told = DAMAGES[damage]
    harm(places)
    faults = verify(settings, LOGINS)
    assert any(told in fault for fault in faults), faults


def test_one_changed_byte_is_seen_with_checksums_alone(settings: Settings, places: Places) -> None:
    _turn_a_byte(_sealed(places))
    assert verify(settings, LOGINS) == []
    (fault,) = verify(settings, LOGINS, checksums=True)
    assert "has changed since it was written" in fault


def test_events_that_are_neither_landed_nor_published_are_missed(settings: Settings, places: Places) -> None:
    landed(settings, "r3", 1, at=7)
    remove_tree(places.landed(DAY, "r3"))
    (fault,) = verify(settings, LOGINS)
    assert "is gone, and no published version has its 1 events" in fault


def test_landed_files_of_days_that_are_no_longer_history_may_be_gone(settings: Settings, places: Places) -> None:
    landed(settings, "r3", 1, at=7)
    remove_tree(places.landed(DAY, "r3"))
    seal_day(settings, DAY + timedelta(days=2), [{"user_id": "u", "event_time": begin(DAY + timedelta(days=2))}])
    assert verify(settings, LOGINS.model_copy(update={"history_days": 3})) != []
    assert verify(settings, LOGINS.model_copy(update={"history_days": 1})) == []


def test_a_day_goes_back_to_the_version_before_and_forward_again(settings: Settings, places: Places) -> None:
    assert roll_back(settings, LOGINS, DAY).version == "v1"
    with DayTable(settings, LOGINS) as table:
        assert (table.published(), sum(table.files().values())) == ({DAY: "v1"}, 5)
    assert verify(settings, LOGINS) == []
    with pytest.raises(ConfigError, match="no earlier published version"):
        roll_back(settings, LOGINS, DAY)
    assert roll_back(settings, LOGINS, DAY, "v2").version == "v2"
    with DayTable(settings, LOGINS) as table:
        assert sum(table.files().values()) == 7


def test_a_version_that_cannot_count_is_refused(settings: Settings, places: Places) -> None:
    sealed(settings, "v3", 1, severity="critical")
    for to, told in (("v3", "was never published"), ("v2", "is already published"), ("v9", "is not there")):
        with pytest.raises(ConfigError, match=told):
            roll_back(settings, LOGINS, DAY, to)
    _cut(_sealed(places, "v1"))
    with pytest.raises(ConfigError, match="bytes, not"):
        roll_back(settings, LOGINS, DAY)
    assert _published(settings) == {DAY: "v2"}


def _bring_in(settings: Settings, path: Path, days: tuple[date, ...]) -> str:
    """Import `path`, with one event on each of `days`; returns the run."""
    path.write_text(path.name)
    run = f"{IMPORTED}{digest(path)[:12]}"
    entry = imported(run, *days)
    assert entry.imported is not None
    own = {"name": str(path), "sha256": digest(path)}
    entry = entry.model_copy(update={"imported": entry.imported.model_copy(update=own)})
    for file in entry.files:
        write_whole(Places.of(settings, "logins").root / file.path, b"rows")
    record(Places.of(settings, "logins"), entry)
    return run


def test_an_import_is_withdrawn_by_its_file_and_the_days_that_it_alone_had_count_no_more(
    settings: Settings, places: Places, tmp_path: Path
) -> None:
    alone = DAY + timedelta(days=1)
    run = _bring_in(settings, tmp_path / "bad.jsonl", (DAY, alone))
    seal_day(settings, alone, [{"user_id": "u", "event_time": begin(alone)}])
    done = withdraw(settings, LOGINS, tmp_path / "bad.jsonl")
    assert (done.events, done.days, done.emptied) == (2, (DAY, alone), (alone,))
    assert not any(name == run for _, name, _ in places.landed_folders())
    assert _published(settings) == {DAY: "v2"}
    found = {one.day: one for one in list_days(settings, LOGINS)}
    assert found[alone].state is DayState.WITHDRAWN
    assert f"bad.jsonl ({run}) was withdrawn at" in found[alone].note
    assert f"bad.jsonl ({run}) was withdrawn at" in found[DAY].note
    with pytest.raises(ConfigError, match="is in no import"):
        withdraw(settings, LOGINS, tmp_path / "bad.jsonl")


def test_all_imports_of_a_day_are_withdrawn_and_their_other_days_stay(
    settings: Settings, places: Places, tmp_path: Path
) -> None:
    other = DAY + timedelta(days=1)
    first = _bring_in(settings, tmp_path / "a.jsonl", (DAY, other))
    _bring_in(settings, tmp_path / "b.jsonl", (DAY,))
    done = withdraw(settings, LOGINS, DAY)
    assert (done.events, done.days, done.emptied) == (2, (DAY,), ()), "r1 and r2 have landed for it, too"
    assert [(day, run) for day, run, _ in places.landed_folders() if run.startswith(IMPORTED)] == [(other, first)]
    (tmp_path / "a.jsonl").unlink()
    assert withdraw(settings, LOGINS, tmp_path / "a.jsonl").days == (other,), "by its name, once it is gone"


def _refuse(settings: Settings, version: str) -> None:
    """A version of DAY that the gate refused, with its record, as a seal leaves them."""
    sealed(settings, version, 7, severity="critical")
    records = Records(settings.state)
    verdict = judged("critical", run_id=version, report=records.place("logins", DAY, version))
    records.write(VerdictRecord(verdict=verdict), "page")
    seal(settings, LOGINS, reads=False)


def test_a_day_that_the_gate_refuses_is_published_by_name(settings: Settings, places: Places) -> None:
    with pytest.raises(ConfigError, match="is published, not refused"):
        accept(settings, LOGINS, DAY, "ann", "a holiday")
    _refuse(settings, "v3")
    assert list(DayRows(settings, "logins").refused()) == [DAY]
    assert [one.refused for one in list_days(settings, LOGINS)] == [True]
    accept(settings, LOGINS, DAY, "ann <ops>", "a holiday")
    assert _published(settings) == {DAY: "v3"}
    assert verify(settings, LOGINS) == []
    (day,) = list_days(settings, LOGINS)
    assert (day.state, day.refused, day.version) == (DayState.PUBLISHED, False, "v3")
    assert day.note.startswith("Accepted by ann <ops> at ")
    assert day.note.endswith("UTC: a holiday.")
    assert DayRows(settings, "logins").refused() == {}
    seal(settings, LOGINS, reads=False)
    assert DayRows(settings, "logins").refused() == {}, "it stays accepted"
    records = Records(settings.state)
    page = (settings.state / records.place("logins", DAY, "v3")).read_text()
    assert "Accepted by ann &lt;ops&gt; at " in page
    assert "tocsin history publish" not in page
    assert "published, accepted by ann &lt;ops&gt;" in (records.folder / INDEX).read_text()
    accepted = day_rows(settings).version(DAY, "v3").accepted
    assert accepted is not None
    assert (accepted.by, accepted.reason) == ("ann <ops>", "a holiday")


def test_an_acceptance_that_was_cut_off_goes_on_and_a_later_version_is_judged_anew(
    settings: Settings, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(settings, "v3")

    def full(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no room"):
        patched.setattr(DayRows, "write", full)
        accept(settings, LOGINS, DAY, "ann", "a holiday")
    assert list(DayRows(settings, "logins").refused()) == [DAY]
    assert accept(settings, LOGINS, DAY, "ann", "a holiday").version == "v3"
    _refuse(settings, "v4")
    assert list(DayRows(settings, "logins").refused()) == [DAY]
    assert _published(settings) == {DAY: "v3"}


def test_what_is_not_whole_is_not_accepted(settings: Settings, places: Places) -> None:
    _refuse(settings, "v3")
    _cut(_sealed(places, "v3"))
    with pytest.raises(ConfigError, match="bytes"):
        accept(settings, LOGINS, DAY, "ann", "a holiday")
    assert list(DayRows(settings, "logins").refused()) == [DAY]


def test_a_refused_day_whose_import_was_withdrawn_is_refused_no_more(settings: Settings, tmp_path: Path) -> None:
    _bring_in(settings, tmp_path / "bad.jsonl", (DAY,))
    _refuse(settings, "v3")
    assert list(DayRows(settings, "logins").refused()) == [DAY]
    withdraw(settings, LOGINS, DAY)
    assert DayRows(settings, "logins").refused() == {}
