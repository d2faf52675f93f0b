"""A process ends before its lease does, and nobody leads before that; whatever becomes of clocks and database."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
import structlog

from tests.rig.waiting import await_that
from tests.unit.runtime.leases.conftest import LENGTH, Clock
from tocsin.model.errors import ConfigError, TransientError
from tocsin.runtime.leases.bounded_call import within
from tocsin.runtime.leases.lease_keeper import Contest, LeaseKeeper, LeaseLost
from tocsin.runtime.leases.lease_table import LeaseRow, LeaseTable

NAME = "prod/detector__bursts"
Keeper = Callable[..., LeaseKeeper]


def row(beats: int, ends_in: float | None, place: str = "a") -> LeaseRow:
    return LeaseRow(NAME, place, "process 1 on a", 7, beats, ends_in)


def test_a_lease_that_nobody_holds_is_free() -> None:
    contest = Contest(LENGTH)
    assert contest.may_take(None, "b", 0)
    assert contest.may_take(row(3, None), "b", 0), "given back"
    assert contest.may_take(row(3, 50, place="b"), "b", 0), "whoever held it from here has ended: the file is locked"


def test_a_silent_lease_is_free_once_it_has_ended_by_the_clock_of_the_database() -> None:
    contest = Contest(LENGTH)
    assert not contest.may_take(row(3, 20), "b", 0)
    assert not contest.may_take(row(3, 1), "b", 19)
    assert contest.may_take(row(3, -0.1), "b", 20)


def test_a_database_whose_clock_jumps_ahead_ends_no_lease_that_is_renewed() -> None:
    contest = Contest(LENGTH)
    for beat in range(20):
        assert not contest.may_take(row(beat, -3600), "b", beat * LENGTH / 12)


def test_a_database_whose_clock_was_set_back_keeps_no_lease_for_ever() -> None:
    contest = Contest(LENGTH)
    assert not contest.may_take(row(3, 3600), "b", 0)
    assert not contest.may_take(row(3, 3600), "b", LENGTH - 1)
    assert contest.may_take(row(3, 3600), "b", LENGTH)


def test_terms_grow_also_over_a_table_that_was_lost(keeper: Keeper, address: str) -> None:
    one = keeper()
    first = one.take(NAME, "a", "one")
    one.give_back(NAME)
    second = one.take(NAME, "b", "two")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE tocsin_leases")
    third = keeper(length=LENGTH).take(NAME, "a", "three")
    assert isinstance(first, int) and isinstance(second, int) and isinstance(third, int)
    assert first < second
    assert first <= third


def test_of_two_that_saw_a_lease_end_one_gets_it(keeper: Keeper) -> None:
    one, two = keeper(), keeper()
    before = one.table.read(NAME)
    assert one.table.take(NAME, "a", "one", before) is not None
    assert two.table.take(NAME, "b", "two", before) is None
    seen = one.table.read(NAME)
    assert two.table.take(NAME, "b", "two", seen) is not None
    assert one.table.take(NAME, "a", "one", seen) is None


def test_renewing_moves_the_end_for_the_holder_alone(keeper: Keeper) -> None:
    clock, lost = Clock(), keeper()
    one = keeper(clock)
    term = one.take(NAME, "a", "one")
    assert isinstance(term, int)
    clock.now += 50
    assert one.remaining == pytest.approx(LENGTH * 0.9 - 50)
    assert one.renew() == ""
    assert one.remaining == pytest.approx(LENGTH * 0.9)
    lost.table.take(NAME, "b", "two", one.table.read(NAME))
    clock.now += 10
    assert one.renew() == NAME
    with pytest.raises(LeaseLost):
        one.check(NAME, term + 1)


@pytest.mark.parametrize(
    "trouble", [TransientError("the lease database is away"), ConfigError.one("db", "its password was changed")]
)
def test_a_process_goes_on_while_its_lease_holds_and_ends_before_it_ends(
    trouble: Exception, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, logged: list[structlog.typing.EventDict]
) -> None:
    clock = Clock()
    one = keeper(clock, 6.0)
    stopped: list[str] = []
    one.on_lost(stopped.append)

    def away(_: object) -> set[str]:
        raise trouble

    monkeypatch.setattr(one.table, "renew", away)
    term = one.take(NAME, "a", "one")
    assert isinstance(term, int)
    await_that(lambda: any(line["event"].startswith("lease not renewed") for line in logged))
    clock.now += 5.3
    one.check(NAME, term)
    assert not one.ends  # type: ignore[attr-defined]
    clock.now += 0.2
    with pytest.raises(LeaseLost):
        one.check(NAME, term)
    await_that(lambda: one.ends == [1])  # type: ignore[attr-defined]
    assert [reason.partition(":")[0] for reason in stopped] == ["its lease could not be renewed for 6 s"]


def test_a_process_whose_lease_is_another_s_ends_at_once(keeper: Keeper) -> None:
    one = keeper(length=6.0)
    assert isinstance(one.take(NAME, "a", "one"), int)
    keeper().table.take(NAME, "b", "two", one.table.read(NAME))
    await_that(lambda: one.ends == [1])  # type: ignore[attr-defined]


def test_what_writes_is_told_at_each_renewal_how_long_it_may_go_on(keeper: Keeper) -> None:
    one = keeper(length=6.0)
    told: list[float] = []
    one.on_renewed(told.append)
    one.take(NAME, "a", "one")
    await_that(lambda: len(told) >= 2)
    assert all(0 < seconds <= 5.4 for seconds in told)


def test_a_call_without_an_answer_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(TransientError, match=r"no answer within 0\.1 s"):
        within(0.1, never.wait)
    never.set()


def test_a_wrong_login_or_table_is_said_where_it_is_to_be_put_right(address: str) -> None:
    user, _, rest = address.partition(":")[2].rpartition("@")
    wrong = f"postgresql:{user.rpartition(':')[0]}:wrong@{rest}"
    with pytest.raises(ConfigError, match=r"leases\.database: cannot be used .*: .*password authentication failed"):
        LeaseTable(wrong, LENGTH).read(NAME)
    LeaseTable(address, LENGTH).read(NAME)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("COMMENT ON TABLE tocsin_leases IS 'leases of Tocsin, form 2'")
    with pytest.raises(ConfigError, match="described as 'leases of Tocsin, form 2', this Tocsin knows"):
        LeaseTable(address, LENGTH).read(NAME)
    with pytest.raises(ConfigError, match="is no address of a PostgreSQL"):
        LeaseTable("postgres at db", LENGTH)
