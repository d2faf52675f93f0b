from collections.abc import Callable, Generator
from datetime import date, timedelta
from pathlib import Path

import pytest
import structlog

from tests.rig.samples.backfills import list_backfilled
from tests.rig.samples.project import copy_project
from tests.unit.alerts.backfilled_days import DAY, MORNING, publish
from tests.unit.alerts.scene import NOON, finding
from tocsin.alerts.backfilled.ledger_follower import FollowedBackfills
from tocsin.alerts.backfilled.published_day import BackfilledDay
from tocsin.alerts.indexer import Indexer
from tocsin.alerts.recording import Recorded
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import FindingFilter
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import BackfillLedger, Backfills, Published

Logged = list[structlog.typing.EventDict]


class Clock:
    """Time that passes when a test says so."""

    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    copy_project(tmp_path / "project")
    return Settings(project=tmp_path / "project", state=tmp_path / "state")


def follow(settings: Settings, database: Database, clock: Clock) -> FollowedBackfills:
    """As the indexer does after a start."""
    indexer = Indexer(settings, database, clock=lambda: MORNING)
    return FollowedBackfills(settings, database, indexer.days, indexer.apply, clock)


def file_of(settings: Settings, one: Published, day: date = DAY) -> Path:
    return Backfills(settings, "failed_logins").folder / f"dt={day}" / f"{one.run}.jsonl.gz"


def users(database: Database) -> list[str]:
    return sorted(one.finding.entity["user_id"] for one in queries.list_findings(database, FindingFilter()))


def test_published_days_come_into_the_db_one_at_a_time_the_newest_first(
    settings: Settings, database: Database, clock: Clock
) -> None:
    for back in range(3):
        at = NOON - timedelta(days=back)
        publish(settings, [finding(60, user=f"of-{back}", at=at)], at.date())
    followed = follow(settings, database, clock)
    assert followed.step()
    assert users(database) == ["of-0"]
    assert followed.step()
    assert not followed.step()
    assert users(database) == ["of-0", "of-1", "of-2"]
    assert [one.day for one in list_backfilled(database, "failed_logins")] == [
        DAY - timedelta(days=back) for back in range(3)
    ]


def test_while_nothing_changes_nothing_is_read_and_what_is_published_anew_is_seen_within_a_second(
    settings: Settings, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(settings, [finding(60)])
    followed = follow(settings, database, clock)
    followed.step()
    reads, read = [], Backfills.read

    def counted(ledger: Backfills) -> BackfillLedger:
        reads.append(ledger.detector)
        return read(ledger)

    monkeypatch.setattr(Backfills, "read", counted)
    for _ in range(10):
        clock.seconds += 1.5
        assert not followed.step()
    assert reads == []
    publish(settings, [finding(60, user="trent")])
    reads.clear()
    followed.step()
    assert users(database) == ["mallory"], "a look each second, not at each step"
    clock.seconds += 1.5
    followed.step()
    assert users(database) == ["trent"]
    assert reads == ["failed_logins"]


def test_a_new_process_stores_no_day_again_and_a_new_db_is_filled_again(
    settings: Settings, database: Database, sqlite: Database, clock: Clock
) -> None:
    publish(settings, [finding(60)])
    follow(settings, database, clock).step()
    (before,) = list_backfilled(database, "failed_logins")

    def never(backfilled: BackfilledDay) -> Generator[None, None, Recorded]:
        raise AssertionError(f"{backfilled.day} is in the DB")

    days = Indexer(settings, database).days
    assert not FollowedBackfills(settings, database, days, never, clock).step()
    assert list_backfilled(database, "failed_logins") == [before]
    follow(settings, sqlite, clock).step()
    assert users(sqlite) == ["mallory"]


def test_a_day_that_is_published_anew_between_look_and_reading_is_stored_as_it_is_then(
    settings: Settings, database: Database, clock: Clock, logged: Logged
) -> None:
    yesterday = DAY - timedelta(days=1)
    publish(settings, [finding(60)])
    publish(settings, [finding(60, user="old", at=NOON - timedelta(days=1))], yesterday)
    followed = follow(settings, database, clock)
    assert followed.step()
    publish(settings, [finding(60, user="new", at=NOON - timedelta(days=1))], yesterday)
    assert not followed.step()
    assert users(database) == ["mallory"]
    followed.step()
    assert users(database) == ["mallory", "new"]
    assert not [line for line in logged if line["log_level"] == "error"]


def ruin_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("ruin", [ruin_bytes, Path.unlink])
def test_a_day_whose_file_is_broken_is_told_once_and_holds_no_other_up(
    settings: Settings, database: Database, clock: Clock, logged: Logged, ruin: Callable[[Path], None]
) -> None:
    ruin(file_of(settings, publish(settings, [finding(60)])))
    publish(settings, [finding(60, user="trent", at=NOON - timedelta(days=1))], DAY - timedelta(days=1))
    followed = follow(settings, database, clock)
    for _ in range(5):
        followed.step()
        clock.seconds += 10
    assert users(database) == ["trent"]
    publish(settings, [finding(60, user="carol", at=NOON - timedelta(days=2))], DAY - timedelta(days=2))
    followed.step()
    assert users(database) == ["carol", "trent"]
    (told,) = [line for line in logged if line["log_level"] == "error"]
    assert (told["detector"], told["day"]) == ("failed_logins", str(DAY))
    assert "run failed_logins for 2026-11-21 again" in told["error"]
    publish(settings, [finding(60)])
    clock.seconds += 10
    followed.step()
    assert users(database) == ["carol", "mallory", "trent"]


def test_a_day_with_findings_of_another_day_is_told_and_left_out(
    settings: Settings, database: Database, clock: Clock, logged: Logged
) -> None:
    publish(settings, [finding(60), finding(60, user="trent", at=NOON + timedelta(days=1))])
    followed = follow(settings, database, clock)
    assert not followed.step()
    assert users(database) == []
    assert "belongs to 2026-11-22" in next(line["error"] for line in logged if line["log_level"] == "error")


def test_rows_of_a_day_that_leaves_the_ledger_stay(settings: Settings, database: Database, clock: Clock) -> None:
    publish(settings, [finding(60)])
    followed = follow(settings, database, clock)
    followed.step()
    Backfills(settings, "failed_logins").forget(DAY + timedelta(days=1))
    assert Backfills(settings, "failed_logins").read() == BackfillLedger()
    clock.seconds += 1.5
    followed.step()
    assert users(database) == ["mallory"]


def test_a_detector_that_is_not_declared_is_stored_without_an_alert(
    settings: Settings, database: Database, clock: Clock
) -> None:
    publish(settings, [finding(120, detector="unheard_of")], detector="unheard_of")
    follow(settings, database, clock).step()
    (one,) = queries.findings_of_day(database, "unheard_of", DAY)
    assert (one.finding.score, one.alert) == (120, None)


def test_trouble_with_the_db_is_told_once_waited_for_and_loses_nothing(
    settings: Settings, database: Database, clock: Clock, logged: Logged
) -> None:
    publish(settings, [finding(60)])
    tries, indexer = [], Indexer(settings, database, clock=lambda: MORNING)

    def apply(backfilled: BackfilledDay) -> Generator[None, None, Recorded]:
        tries.append(backfilled.day)
        if len(tries) <= 2:
            raise TransientError("the disk is full")
        return indexer.apply(backfilled)

    followed = FollowedBackfills(settings, database, indexer.days, apply, clock)
    for _ in range(20):
        assert not followed.step()
        clock.seconds += 1
    assert len(tries) == 3
    assert users(database) == ["mallory"]
    said = [line["event"] for line in logged if line["event"].startswith("backfills ")]
    assert said == ["backfills waiting", "backfills resumed"]


def test_a_folder_that_cannot_be_read_is_waited_for(
    settings: Settings, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(settings, [finding(60)])
    followed = follow(settings, database, clock)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(PermissionError("may not be read")))
        assert not followed.step()
    clock.seconds += 6
    followed.step()
    assert users(database) == ["mallory"]
