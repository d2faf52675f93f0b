"""Of several processes of one job one leads, whether files or a database decide."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.waiting import patient
from tocsin.model.errors import ConfigError
from tocsin.project.blocks.lease_settings import LeaseSettings
from tocsin.project.settings import Settings
from tocsin.runtime.leases import lead
from tocsin.runtime.leases.lead import Lead, LeaseHeld, held_lease, lead_batch, live_leases, try_lead
from tocsin.runtime.leases.lease_keeper import LeaseKeeper
from tocsin.runtime.leases.lease_table import LeaseTable
from tocsin.runtime.lock import LockHeld, hold
from tocsin.supervision.runners.job_command import setting_variables

JOB = "detector:bursts"
Machine = Callable[..., Settings]
HOLDER = """
import time
from tocsin.project.settings import load_settings
from tocsin.runtime.leases.lead import try_lead
settings = load_settings()
lock = try_lead(settings, settings.checkpoint("detector:bursts") / "lock")
print("held", lock.term, flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["file", "lease"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_second_process_is_refused_unless_it_is_to_run_beside(machine: Machine, form: str) -> None:
    with Lead(machine(), JOB) as first:
        assert first.held
        with pytest.raises(LockHeld):
            Lead(machine(), JOB)
        with Lead(machine(), JOB, beside=True) as second:
            assert not second.held
            assert second.await_turn(lambda *_: None, threading.Event()), "the one that it runs beside leads"


def test_the_one_beside_leads_as_soon_as_the_other_has_ended(machine: Machine, form: str) -> None:
    took = threading.Event()
    first = Lead(machine(), JOB)
    with Lead(machine(), JOB, beside=True) as second:
        second.follow(took.set)
        assert not took.wait(0.3)
        first.close()
        assert took.wait(patient(5))
        assert second.held


def test_one_that_leads_from_the_start_is_told_nothing(machine: Machine, form: str) -> None:
    took = threading.Event()
    with Lead(machine(), JOB, beside=True) as only:
        assert only.held
        only.follow(took.set)
        assert not took.wait(0.3)


def test_one_that_no_longer_waits_gets_nothing(machine: Machine, form: str) -> None:
    took = threading.Event()
    first = Lead(machine(), JOB)
    second = Lead(machine(), JOB, beside=True)
    second.follow(took.set)
    second.close()
    first.close()
    assert not took.wait(0.3)
    Lead(machine(), JOB).close()


def test_who_was_killed_is_followed_on_the_same_machine_at_once(
    machine: Machine, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = machine()
    for name, value in setting_variables(settings).items():
        monkeypatch.setenv(name, value)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        term = next(line.split()[1] for line in holder.stdout if line.startswith("held "))
        with pytest.raises(LockHeld):
            Lead(settings, JOB)
    finally:
        holder.kill()
        holder.communicate()
    with try_lead(settings, settings.checkpoint(JOB) / "lock") as lock:
        assert (lock.term is None) if form == "file" else (lock.term is not None and lock.term > int(term))


class TestLeases:
    """What files cannot do."""

    @pytest.fixture
    def form(self) -> str:
        return "lease"

    def test_another_machine_waits_and_leads_as_soon_as_the_lease_is_given_back(self, machine: Machine) -> None:
        first, told, stop = Lead(machine("a"), JOB), [], threading.Event()
        with Lead(machine("b"), JOB) as second:
            assert not second.held

            def tell(reason: str, is_away: bool) -> None:
                told.append((reason, is_away))
                first.close()

            assert second.await_turn(tell, stop)
            assert second.held
        assert "leads prod/detector__bursts; its lease holds" in told[0][0]
        assert not told[0][1]

    def test_a_process_beside_does_nothing_on_a_machine_that_does_not_lead(self, machine: Machine) -> None:
        stop = threading.Event()
        stop.set()
        with Lead(machine("a"), JOB), Lead(machine("b"), JOB, beside=True) as beside:
            assert not beside.await_turn(lambda *_: None, stop)

    def test_each_checkpoint_and_job_has_a_lease_of_its_own(self, machine: Machine) -> None:
        a, b = machine("a"), machine("b")
        with try_lead(a, a.checkpoint(JOB) / "lock"), try_lead(a, a.checkpoint(JOB) / "f1" / "lock"):
            assert [row.name for row in live_leases(b)] == ["prod/detector__bursts", "prod/detector__bursts/f1"]
            with pytest.raises(LeaseHeld):
                try_lead(b, b.checkpoint(JOB) / "f1" / "lock")
            try_lead(b, b.checkpoint(JOB) / "f2" / "lock").release()
        assert live_leases(b) == []

    def test_who_no_longer_leads_a_job_gives_back_its_checkpoints_too(self, machine: Machine) -> None:
        a, b = machine("a"), machine("b")
        with Lead(a, JOB):
            try_lead(a, a.checkpoint(JOB) / "f1" / "lock")
        assert live_leases(b) == []
        try_lead(b, b.checkpoint(JOB) / "f1" / "lock").release()

    def test_the_term_is_known_while_the_lease_is_held(self, machine: Machine) -> None:
        settings = machine()
        with Lead(settings, JOB):
            lease = held_lease(settings, JOB)
            assert lease is not None
            lease.check()
        with pytest.raises(Exception, match="has ended"):
            lease.check()

    def test_an_installation_without_a_name_is_refused(self, machine: Machine) -> None:
        with pytest.raises(ConfigError, match="instance: must name this installation"):
            Lead(machine().model_copy(update={"instance": "local"}), JOB)

    def test_a_database_that_is_away_is_waited_for(self, machine: Machine) -> None:
        address = "postgresql://u@127.0.0.1:1/x"
        settings = machine().model_copy(update={"leases": LeaseSettings(database=address)})
        told: list[bool] = []
        stop = threading.Event()

        def tell(reason: str, is_away: bool) -> None:
            assert "the lease database postgresql://127.0.0.1:1/x:" in reason
            told.append(is_away)
            stop.set()

        with Lead(settings, JOB) as one:
            assert not one.await_turn(tell, stop)
        assert told == [True]

    def test_of_two_that_stand_by_on_a_machine_neither_ends_because_the_other_asks(self, machine: Machine) -> None:
        asked, stop = [], threading.Event()

        def tell(reason: str, is_away: bool) -> None:
            asked.append(reason)
            if len(asked) == 2:
                stop.set()

        lock = machine("b").checkpoint(JOB) / "lock"
        with Lead(machine("a"), JOB), Lead(machine("b"), JOB) as second, hold(lock):  # as the other does while it asks
            assert not second.await_turn(tell, stop)
        assert all("leads prod/detector__bursts" in reason for reason in asked)


class TestBatches:
    """One machine runs a batch, and another one runs it when that was lost."""

    @pytest.fixture
    def form(self) -> str:
        return "lease"

    @pytest.fixture(autouse=True)
    def _hurried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lead, "_ASK_SECONDS", 0.05)

    def test_one_that_another_machine_runs_is_left_to_it(
        self, tmp_path: Path, led_elsewhere: Callable[[Settings, str], AbstractContextManager[Settings]]
    ) -> None:
        with led_elsewhere(Settings(state=tmp_path / "state"), "seal:logins") as here:
            lock = here.checkpoint("seal:logins") / "lock"
            with pytest.raises(LeaseHeld, match="leads prod/seal"):
                lead_batch(here, lock)
        lead_batch(here, lock).release()

    def test_one_that_a_lost_machine_had_begun_is_taken_over(
        self, machine: Machine, address: str, keeper: Callable[..., LeaseKeeper], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings, seconds = machine("b"), itertools.count(1000)
        settings = settings.model_copy(update={"leases": LeaseSettings(database=address, length=timedelta(seconds=60))})
        own = keeper(lambda: float(next(seconds)))  # at each look another second is over
        monkeypatch.setitem(lead._keepers, (address, 60.0), own)
        lost = LeaseTable(address, -1.0)  # it has ended by the clock of the database
        term = lost.take("prod/seal__logins", "elsewhere", "process 1 on a", None)
        assert term is not None
        began = next(seconds)
        with lead_batch(settings, settings.checkpoint("seal:logins") / "lock") as lock:
            assert lock.term is not None
            assert lock.term > term
        assert next(seconds) - began >= 15, "for a quarter of the length nothing was heard of it"
