from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.rig.samples.history import DAY, NOON, version
from tests.rig.samples.sealed_days import LOGINS, landed, seal_day, sealed
from tocsin.declare.settings import Settings
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.history_retention import Held, Leftovers, leftovers, tidy
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places, begin
from tocsin.history.seal_planning import Retention, oldest_kept


def kept_at(now: datetime) -> Retention:
    return Retention(oldest_kept(now, timedelta(days=60)))


def left(*versions: DayVersion, folders: tuple[str, ...] = (), **changed: Any) -> Leftovers:
    names = folders or tuple(one.version for one in versions)
    facts: dict[str, Any] = {"published": {DAY: "v2"}, "landed_folders": (), "now": NOON}
    facts |= {"retention": kept_at(changed.get("now", NOON)), "grace": timedelta(hours=1)} | changed
    return leftovers(Held(versions={DAY: list(versions)}, version_folders=tuple((DAY, n) for n in names), **facts))


def test_an_earlier_version_goes_a_week_after_it_was_replaced() -> None:
    versions = version("v1", published=NOON - timedelta(days=9)), version("v2", published=NOON - timedelta(days=3))
    assert left(*versions).versions == ()
    assert left(*versions, now=NOON + timedelta(days=4)).versions == ((DAY, "v1"),)


def test_what_counts_stays_even_if_it_cannot_be_read() -> None:
    assert left(folders=("v2",)).versions == ()


def test_what_is_not_whole_goes_at_once() -> None:
    assert left(version("v2"), folders=("v1", "v2", "v3")).versions == ((DAY, "v1"), (DAY, "v3"))
    unfinished = version("v3", published=None, severity=None)
    assert left(version("v2"), unfinished).versions == ((DAY, "v3"),)


def test_a_refused_version_stays_until_a_later_one_is_published() -> None:
    refused = version("v1", published=None, severity="critical")
    assert left(refused, published={}).versions == ()
    assert left(refused, version("v2")).versions == ((DAY, "v1"),)


def test_days_that_are_no_longer_history_go_with_all_they_have() -> None:
    late = NOON + timedelta(days=60)
    gone = left(version("v2", "r1"), now=late, landed_folders=((DAY, "r1"), (DAY, "r9")))
    assert gone == Leftovers((DAY,), ((DAY, "v2"),), ((DAY, "r1"), (DAY, "r9")))
    assert left(version("v2"), now=late - timedelta(days=1)).days == ()


def test_landed_files_go_once_what_is_published_has_them_and_the_day_is_over() -> None:
    landed = ((DAY, "r1"), (DAY, "r2"))
    assert left(version("v2", "r1"), landed_folders=landed).landed == ((DAY, "r1"),)
    early = NOON.replace(hour=0)
    assert left(version("v2", "r1"), landed_folders=landed, now=early).landed == ()
    assert (
        left(version("v1", "r1", published=None, severity="critical"), published={}, landed_folders=landed).landed == ()
    )


def test_an_aged_day_goes_out_of_the_table_and_off_the_disk_and_not_a_day_before(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    landed(settings, "r2", 2, at=5)
    sealed(settings, "v2", 7)
    places = Places.of(settings, "logins")
    later = DAY + timedelta(days=3)
    newer = seal_day(settings, later, [{"user_id": "u", "event_time": begin(later)}])

    with DayTable(settings, LOGINS) as table:
        kept = tidy(settings, LOGINS.model_copy(update={"history_days": 4}), table)
        assert (kept.days, table.published()[DAY], sum(table.files().values())) == ((), "v2", 8)
        assert {str(path) for path in places.version(DAY, "v2").glob("*.parquet")} < set(table.files())

        gone = tidy(settings, LOGINS.model_copy(update={"history_days": 3}), table)
        assert (gone.days, (DAY, "v2") in gone.versions) == ((DAY,), True)
        assert table.published() == {later: newer.version}
    assert [day for day, _, _ in [*places.version_folders(), *places.landed_folders()]] == [later]
    assert [entry.run for entry in read_ledger(places).entries][-1] == "r2", "which says where landing goes on"
