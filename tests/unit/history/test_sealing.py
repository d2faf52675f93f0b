import contextlib
import errno
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from tests.rig.samples.backfills import attempt
from tests.rig.samples.history import DAY, day_rows, entry, judged, version
from tests.rig.samples.sealed_days import LOGINS
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.source import Source
from tocsin.declare.setting_blocks import HistorySettings
from tocsin.declare.settings import Settings
from tocsin.history import sealing
from tocsin.history.backfill.backfill_ledger import Backfills, End
from tocsin.history.backfill.backfill_retention import tidy_after_sealing
from tocsin.history.backfill.spark import backfill_run
from tocsin.history.backfill.spark.backfill_run import BackfillOutcome
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import record
from tocsin.history.places import Places, begin, writing_history
from tocsin.history.seal_outcomes import seal_outcomes
from tocsin.history.sealing import SealingOutcome, seal
from tocsin.history.spark.seal import SealedDay, tasks
from tocsin.history.verdict_index import write_index
from tocsin.job import Batch
from tocsin.platform.process_exit import ExitCode
from tocsin.quality.verdict_files import INDEX, Records, VerdictRecord

BEFORE = DAY - timedelta(days=1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; .* make room and run this again"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "the JVM of Spark has ended .* run this"),
    ],
)
def test_what_keeps_a_file_from_being_written_is_said_with_what_to_do(error: OSError, said: str) -> None:
    with pytest.raises(TransientError, match=said), writing_history(Settings()):
        raise error


@pytest.mark.parametrize(
    ("severities", "failed", "code"),
    [
        ([], {}, 0),
        (["pass"], {}, 0),
        (["pass", "warning"], {}, 10),
        (["critical", "warning"], {}, 20),
        (["critical"], {"failed": {DAY: "broken"}}, 1),
        (["pass"], {"failed": {DAY: "full"}, "disk": True}, 4),
        (["pass", "critical"], {"unread": "Kafka is away"}, 1),
    ],
)
def test_the_exit_code_says_the_worst_of_all_days(severities: list[str], failed: dict[str, Any], code: int) -> None:
    outcome = SealingOutcome(sealed=[SealedDay(DAY, version("v1"), judged(one)) for one in severities], **failed)
    assert outcome.code == code


def test_a_night_without_a_day_to_seal_tidies_up(settings: Settings) -> None:
    records = Records(settings.state)
    records.write(VerdictRecord(verdict=judged(day=date(2001, 1, 1))), "page")
    seal(settings, LOGINS, reads=False)
    tidy_after_sealing(settings, LOGINS)
    assert records.subjects() == []


def note_version(settings: Settings, day: date, name: str, run_id: str, severity: str | None) -> str:
    """A version of `day` that was judged like that; the path of its report."""
    now, report = datetime.now(UTC), f"quality/logins/{day}/{name}.html"
    published = now if severity in ("pass", "warning") else None
    own = {"sealed_at": now, "report": report, "run_id": run_id, "summary": "events_arrived: rows is 0."}
    made = version(name, severity=severity, published=published).model_copy(update=own)
    day_rows(settings).write(day, made)
    return report


def test_a_night_tells_of_each_day_that_it_has_sealed_or_could_not(settings: Settings) -> None:
    third, fourth, rows = DAY + timedelta(days=1), DAY + timedelta(days=2), day_rows(settings)
    note_version(settings, fourth, "v1", "the night before", "critical")
    rows.note(BEFORE - timedelta(days=1), "in the night before", "the night before")
    rows.note(DAY, "a landed file is gone", "night")
    rows.note(third, "no room", "night")
    note_version(settings, BEFORE, "v1", "night", "critical")
    good = note_version(settings, BEFORE, "v2", "night", "warning")
    note_version(settings, DAY, "v2", "night", None)
    retried = note_version(settings, third, "v2", "night", "pass")
    refused = note_version(settings, fourth, "v2", "night", "critical")
    outcomes = seal_outcomes(settings, "logins", "night")
    assert [(one.subject, one.day, one.published, one.said, one.report) for one in outcomes] == [
        ("logins", BEFORE, True, "published, 1 event, verdict warning", good),
        ("logins", DAY, False, "failed: a landed file is gone", None),
        ("logins", third, True, "published, 1 event, verdict pass", retried),
        ("logins", fourth, False, "refused: events_arrived: rows is 0.", refused),
    ]
    assert seal_outcomes(settings, "logins", "another night") == []


def test_the_index_shows_a_day_that_could_not_be_sealed_and_leads_to_what_was_said_before(settings: Settings) -> None:
    def page() -> str:
        write_index(settings)
        return (settings.state / "quality" / INDEX).read_text()

    rows = day_rows(settings)
    rows.note(DAY, "a file is <gone>")
    assert f'<span class="day critical" title="{DAY}: not sealed">?</span>' in page()
    assert "NOT SEALED" in page()
    assert re.search(r"It could not be sealed at [^<]+ UTC: a file is &lt;gone&gt;", page())
    assert "<a " not in page()
    Records(settings.state).write(VerdictRecord(verdict=judged()), "")
    assert page().count(f'href="logins/{DAY}/v1.html"') == 2, "in the grid, and in the list of failures"
    assert f"{DAY}: not sealed" in page()
    rows.note(DAY, None)
    assert "Warnings and failures" not in page()


NIGHT = "scheduled__2026-11-22T02:10:00+00:00"


@dataclass
class Room:
    """Whether there is room to seal BEFORE; the gate refuses DAY."""

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
        if day == BEFORE and not self.is_there:
            return OSError("broken")
        severity = "critical" if day == DAY else "pass"
        sealed = _version(severity, "run-1", day).model_copy(update={"run_id": self.run_id})
        self.table.rows.write(day, sealed)
        return SealedDay(day, sealed, judged(severity, day))


def _version(severity: str, run: str, day: date) -> DayVersion:
    at = datetime.now(UTC)
    published = None if severity == "critical" else at
    made = version(f"v{at:%Y%m%dT%H%M%S}000Z", run, severity=severity, published=published)
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
    record(places, entry("run-1", BEFORE, DAY))
    return room


def test_a_night_that_a_second_try_mends_is_refused_for_the_day_of_the_first(room: Room) -> None:
    first = sealing.seal(room.settings, LOGINS, run_id=NIGHT)
    assert (first.code, [*first.failed], [one.day for one in first.sealed]) == (ExitCode.FAILED, [BEFORE], [DAY])
    room.is_there = True
    second = sealing.seal(room.settings, LOGINS, run_id=NIGHT)
    assert [one.day for one in second.sealed] == [BEFORE], "what is refused is not sealed again"
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


@pytest.mark.parametrize(
    ("rows", "buckets", "expected"),
    [(0, 32, 1), (200_000, 32, 1), (200_001, 32, 2), (900_000, 32, 8), (25_000_000, 32, 32), (10**9, 7, 7), (5, 1, 1)],
)
def test_a_small_day_is_written_by_few_tasks_and_each_writes_whole_buckets(
    rows: int, buckets: int, expected: int
) -> None:
    assert tasks(rows, buckets) == expected
    assert buckets % tasks(rows, buckets) == 0
