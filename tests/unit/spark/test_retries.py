"""Programs that judge, tried twice by one run: what the first try was refused counts when the second fixes the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.backfills import attempt
from tests.rig.samples.history import DAY, entry, version
from tests.rig.samples.sealed_days import LOGINS
from tocsin.declare.model.source import Source
from tocsin.declare.setting_blocks import HistorySettings
from tocsin.declare.settings import Settings
from tocsin.history import sealing
from tocsin.history.backfill.backfill_ledger import Backfills, End
from tocsin.history.backfill.spark import backfill_run
from tocsin.history.backfill.spark.backfill_run import BackfillOutcome
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import record
from tocsin.history.places import Places, begin
from tocsin.history.seal_outcomes import seal_outcomes
from tocsin.history.spark.seal import SealedDay
from tocsin.job import Batch
from tocsin.platform.process_exit import ExitCode
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict

GOOD = DAY - timedelta(days=1)
NIGHT = "scheduled__2026-11-22T02:10:00+00:00"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


@dataclass
class Room:
    """Whether there is room to seal GOOD; the gate refuses DAY."""

    settings: Settings
    source: Source = LOGINS
    is_there: bool = False
    table: DayTable = field(init=False)
    run_id: str = ""

    def chunks(self, days: Iterable[date], _ledger: object) -> list[tuple[date, ...]]:
        return [tuple(days)]

    def seal_all(self, days: Iterable[date], _ledger: object) -> dict[date, SealedDay | Exception]:
        return {day: self.seal(day) for day in days}

    def seal(self, day: date) -> SealedDay | Exception:
        if day == GOOD and not self.is_there:
            return OSError("broken")
        severity = Severity.CRITICAL if day == DAY else Severity.PASS
        judged = _version(severity, "run-1", day).model_copy(update={"run_id": self.run_id})
        self.table.rows.write(day, judged)
        passed = severity is Severity.PASS
        check = Check(
            name="a", stage=CheckStage.DAY, severity=Severity.CRITICAL, passed=passed, observed="1", limit="0"
        )
        at = datetime.now(UTC)
        return SealedDay(day, judged, Verdict(subject="logins", day=day, run_id="v", judged_at=at, checks=(check,)))


def _version(severity: Severity, run: str, day: date) -> DayVersion:
    at = datetime.now(UTC)
    published = None if severity is Severity.CRITICAL else at
    made = version(f"v{at:%Y%m%dT%H%M%S}000Z", run, severity=severity.value, published=published)
    return made.model_copy(update={"sealed_at": at, "facts": made.facts.model_copy(update={"day": day})})


@pytest.fixture
def room(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Room:
    room = Room(settings)

    @contextlib.contextmanager
    def no_spark(*given: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(sealing, "running_batch", no_spark)

    def sealer(_spark: object, _settings: object, _source: object, table: DayTable, _gate: object, run: str) -> Room:
        room.table, room.run_id = table, run
        return room

    monkeypatch.setattr(sealing, "Sealer", sealer)
    monkeypatch.setattr(sealing, "tidy", lambda *given: None)
    monkeypatch.setattr(sealing, "land_new", lambda *given: None)
    places = Places.of(settings, "logins")
    record(places, entry("run-1", GOOD, DAY))
    return room


def test_a_night_that_a_second_try_mends_is_refused_for_the_day_of_the_first(room: Room) -> None:
    first = sealing.seal(room.settings, LOGINS, run_id=NIGHT)
    assert (first.code, [*first.failed], [one.day for one in first.sealed]) == (ExitCode.FAILED, [GOOD], [DAY])
    room.is_there = True
    second = sealing.seal(room.settings, LOGINS, run_id=NIGHT)
    assert [one.day for one in second.sealed] == [GOOD], "what is refused is not sealed again"
    assert (second.code, second.refused_before) == (ExitCode.REFUSED, (DAY,))


def test_a_night_has_failed_while_the_day_that_it_is_for_waits_and_the_next_one_only_waits(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = datetime.now(UTC)
    waits, before = moment.date() - timedelta(days=1), moment.date() - timedelta(days=2)
    late = entry("run-2", before, waits, tick=begin(before) + timedelta(hours=12))
    record(Places.of(room.settings, "logins"), late)
    monkeypatch.setattr(room, "chunks", lambda *_: [])
    settings = room.settings.model_copy(update={"history": HistorySettings(grace=timedelta())})
    night = sealing.seal(settings, LOGINS, run_id=NIGHT)
    assert (night.code, [*night.failed], "Kafka was read up to" in night.failed[waits]) == (1, [waits], True)
    (outcome,) = seal_outcomes(settings, "logins", NIGHT)
    assert (outcome.day, outcome.said) == (waits, f"failed: {night.failed[waits]}")
    assert sealing.seal(settings, LOGINS).code == ExitCode.OK, "who seals by hand sees what waits"


def test_the_night_after_hears_nothing_of_it_nor_does_who_seals_by_hand(room: Room) -> None:
    room.is_there = True
    assert sealing.seal(room.settings, LOGINS, run_id=NIGHT).code == ExitCode.REFUSED
    assert sealing.seal(room.settings, LOGINS).code == ExitCode.OK
    assert sealing.seal(room.settings, LOGINS, run_id="the next night").code == ExitCode.OK


def test_a_backfill_that_a_second_try_mends_is_refused_for_the_day_of_the_first(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_run, "backfill", lambda *given: BackfillOutcome())
    held = attempt(End.HELD, None).model_copy(update={"run_id": NIGHT})
    Backfills(settings, "bursts").note(DAY, held)
    night = Batch(names=("quiet", "bursts"), settings=settings, run_id=NIGHT)
    assert backfill_run.run(night) == ExitCode.REFUSED
    assert backfill_run.run(replace(night, run_id="the next night")) == ExitCode.OK
    Backfills(settings, "bursts").note(DAY, held.model_copy(update={"end": End.FAILED}))
    assert backfill_run.run(night) == ExitCode.OK, "a day that failed is told by the try in which it did"
