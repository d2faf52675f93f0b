"""Which days of a detector need a run, of what their findings are made, how they stand and what they take."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.backfills import DAY, NEXT, SPEC, attempt, published
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.durations import reach
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.history.backfill import backfill_status
from tocsin.history.backfill.backfill_ledger import BackfillLedger, End, Made
from tocsin.history.backfill.backfill_planning import Sealed, inputs, made_of, plan
from tocsin.history.backfill.backfill_status import (
    CPU_SECONDS_PER_DAY,
    CPU_SECONDS_PER_MILLION,
    BackfillState,
    statuses,
    without_table,
)
from tocsin.history.seal_planning import chunks
from tocsin.setup.paths import here

SEALED = {DAY: "v1", NEXT: "v1"}
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "slide", "seconds"),
    [
        (None, None, 0),
        (timedelta(seconds=10), None, 0),
        (timedelta(days=1), None, 0),
        (timedelta(seconds=7), None, 7),
        (timedelta(minutes=10), timedelta(minutes=1), 600),
        (timedelta(days=2), None, 2 * 86_400),
    ],
)
def test_windows_that_end_by_midnight_need_no_further_day(
    window: timedelta | None, slide: timedelta | None, seconds: int
) -> None:
    assert reach(replace(SPEC, window=window, slide=slide), MIDNIGHT) == timedelta(seconds=seconds)


def test_a_window_of_seven_hours_ends_at_some_midnights() -> None:
    spec = replace(SPEC, window=timedelta(hours=7))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert reach(spec, epoch + timedelta(days=7)) == timedelta(0)
    assert reach(spec, epoch + timedelta(days=8)) == timedelta(hours=7)


def test_a_long_window_needs_as_many_days_as_it_touches() -> None:
    spec = replace(SPEC, window=timedelta(hours=36), slide=timedelta(hours=12))
    assert inputs(DAY, spec) == [DAY, NEXT, NEXT + timedelta(days=1)]
    assert made_of(DAY, spec, Sealed(SEALED)) is None


def test_what_was_never_run_is_due_and_what_is_done_is_not() -> None:
    planned = plan(BackfillLedger(), SPEC, Sealed(SEALED), SEALED)
    assert planned.days == {DAY: "never run", NEXT: "never run"}
    done = BackfillLedger(published={day: published(made_of(day, SPEC, Sealed(SEALED))) for day in SEALED})
    assert plan(done, SPEC, Sealed(SEALED), SEALED).days == {}


def test_another_version_and_another_seal_make_a_day_due_again() -> None:
    done = BackfillLedger(published={day: published(made_of(day, SPEC, Sealed(SEALED))) for day in SEALED})
    newer = replace(SPEC, version="2" * 12)
    assert plan(done, newer, Sealed(SEALED), SEALED).days == dict.fromkeys(SEALED, f"run by version {SPEC.version}")
    assert plan(done, SPEC, Sealed(SEALED | {NEXT: "v2"}), SEALED).days == {NEXT: "sealed again since"}
    sliding = replace(SPEC, window=timedelta(minutes=10), slide=timedelta(minutes=1))
    own = BackfillLedger(published={DAY: published(made_of(DAY, sliding, Sealed(SEALED)))})
    assert plan(own, sliding, Sealed(SEALED | {NEXT: "v2"}), [DAY]).days == {DAY: "sealed again since"}, (
        "it looks into it"
    )


def test_a_failed_day_is_tried_again_even_where_an_earlier_run_counts() -> None:
    made = made_of(DAY, SPEC, Sealed(SEALED))
    failed = {DAY: attempt(End.FAILED, made)}
    assert plan(BackfillLedger(attempts=failed), SPEC, Sealed(SEALED), [DAY]).days == {DAY: "failed the last time"}
    both = BackfillLedger(published={DAY: published(made)}, attempts=failed)
    assert plan(both, SPEC, Sealed(SEALED), [DAY]).days == {DAY: "failed the last time"}


def test_a_held_day_waits_until_something_has_changed() -> None:
    held = BackfillLedger(attempts={DAY: attempt(End.HELD, made_of(DAY, SPEC, Sealed(SEALED)))})
    planned = plan(held, SPEC, Sealed(SEALED), [DAY])
    assert (planned.days, planned.held) == ({}, (DAY,))
    newer = replace(SPEC, version="2" * 12)
    assert plan(held, newer, Sealed(SEALED), [DAY]).days == {DAY: f"held, then run by version {SPEC.version}"}
    assert plan(held, SPEC, Sealed({DAY: "v2"}), [DAY]).days == {DAY: "held, then sealed again since"}
    before = held.model_copy(update={"published": {DAY: published(made_of(DAY, newer, Sealed(SEALED)))}})
    assert plan(before, newer, Sealed(SEALED), [DAY]).days == {DAY: f"held, then run by version {SPEC.version}"}


def test_a_held_day_runs_again_once_the_rules_that_held_it_have_changed() -> None:
    held = attempt(End.HELD, made_of(DAY, SPEC, Sealed(SEALED))).model_copy(update={"rules": "old"})
    known = BackfillLedger(attempts={DAY: held})
    assert plan(known, SPEC, Sealed(SEALED, rules="old"), [DAY]).held == (DAY,)
    assert plan(known, SPEC, Sealed(SEALED, rules="new"), [DAY]).days == {DAY: "held, then judged by other rules"}


def test_a_changed_query_of_a_joined_table_makes_days_due_again() -> None:
    spec = replace(SPEC, tables=("segments", "prices"))
    queries = {"segments": "a", "prices": ""}
    sealed = Sealed(SEALED, tables=queries.__getitem__)
    done = BackfillLedger(published={DAY: published(made_of(DAY, spec, sealed))})
    assert plan(done, spec, sealed, [DAY]).days == {}
    queries["segments"] = "b"
    assert plan(done, spec, sealed, [DAY]).days == {DAY: "another query of table 'segments'"}
    earlier = published(Made(version=spec.version, inputs={DAY: SEALED[DAY]}))
    assert plan(BackfillLedger(published={DAY: earlier}), spec, sealed, [DAY]).days == {}, "what it joined is not known"


def test_a_day_that_is_not_whole_is_blocked_and_says_by_what() -> None:
    sliding = replace(SPEC, window=timedelta(minutes=10), slide=timedelta(minutes=1))
    planned = plan(BackfillLedger(), sliding, Sealed({DAY: "v1"}), [DAY, NEXT])
    assert planned.days == {}
    after = NEXT + timedelta(days=1)
    assert planned.blocked == {
        DAY: f"needs {NEXT}, which is not published",
        NEXT: f"needs {NEXT}, which is not published, and {after}, which is not published",
    }
    assert plan(BackfillLedger(), SPEC, Sealed({}), [DAY]).blocked == {DAY: "is not published"}
    why = Sealed({}, why_not=lambda day: f"is not published: {day} is under way")
    assert plan(BackfillLedger(), SPEC, why, [DAY]).blocked == {DAY: f"is not published: {DAY} is under way"}


def test_neighbours_share_a_query_up_to_so_many_events() -> None:
    days = [date(2026, 11, number) for number in (1, 2, 3, 5, 6)]
    rows = dict.fromkeys(days, 40) | {date(2026, 11, 6): 500}
    assert list(chunks(reversed(days), rows, 100, neighbours=True)) == [
        tuple(days[:2]),
        (days[2],),
        (days[3],),
        (days[4],),
    ]
    assert list(chunks([], rows, 100, neighbours=True)) == []


def test_a_state_needs_the_days_before_as_far_as_there_are_any() -> None:
    spec = replace(SPEC, window=None, forget_after=timedelta(days=2, hours=1))
    days = [DAY - timedelta(days=number) for number in (4, 3, 2, 1)] + [DAY]
    assert inputs(DAY, spec) == days[1:]
    sealed = dict.fromkeys(days, "v1")
    made = made_of(days[1], spec, Sealed(sealed))
    assert made is not None
    assert [*made.inputs] == days[:2], "there is none before the first"
    del sealed[days[2]]
    blocked = plan(BackfillLedger(), spec, Sealed(sealed), [DAY]).blocked
    assert blocked == {DAY: f"needs {days[2]}, which is not published"}


def test_a_day_that_retention_removes_makes_no_later_day_due() -> None:
    spec = replace(SPEC, window=None, forget_after=timedelta(days=1))
    before = DAY - timedelta(days=1)
    sealed = dict.fromkeys([before, DAY, NEXT], "v1")
    done = BackfillLedger(published={day: published(made_of(day, spec, Sealed(sealed))) for day in sealed})
    del sealed[before]
    assert plan(done, spec, Sealed(sealed), sealed).days == {}
    assert plan(done, spec, Sealed(sealed | {DAY: "v2"}), sealed).days == dict.fromkeys(sealed, "sealed again since")


def test_a_day_before_a_table_that_it_joins_is_blocked_and_not_run_each_night() -> None:
    joins = replace(SPEC, tables=("usual",))
    sealed = Sealed(SEALED, no_table=lambda name, day: f"comes before table '{name}'" if day == DAY else "")
    planned = plan(BackfillLedger(), joins, sealed, SEALED)
    assert (planned.blocked, planned.days) == ({DAY: "comes before table 'usual'"}, {NEXT: "never run"})


ROWS = {DAY: 2_000_000, NEXT: 1_000_000}


def test_each_day_stands_as_it_is_and_says_why() -> None:
    held, gone = DAY - timedelta(days=1), NEXT + timedelta(days=1)
    sealed = SEALED | {held: "v1"}
    ledger = BackfillLedger(
        published={DAY: published(made_of(DAY, SPEC, Sealed(sealed)))},
        attempts={held: attempt(End.HELD, made_of(held, SPEC, Sealed(sealed)))},
    )
    found = statuses(ledger, SPEC, Sealed(sealed, ROWS), [gone, NEXT, DAY, held])
    assert [(one.day, one.state, one.why) for one in found] == [
        (held, BackfillState.HELD, "so it is"),
        (DAY, BackfillState.DONE, ""),
        (NEXT, BackfillState.DUE, "never run"),
        (gone, BackfillState.BLOCKED, "is not published"),
    ]
    assert [one.findings for one in found] == [None, 0, None, None]
    assert [one.severity for one in found] == [None, "pass", None, None]


def test_what_a_day_takes_is_what_days_before_took_for_each_event() -> None:
    first = statuses(BackfillLedger(), SPEC, Sealed(SEALED, ROWS), [DAY])[0].expected_cpu_seconds
    assert first == CPU_SECONDS_PER_DAY + 2 * CPU_SECONDS_PER_MILLION
    ran = published(made_of(NEXT, SPEC, Sealed(SEALED))).model_copy(update={"rows": 1_000_000, "cpu_seconds": 7.0})
    known = BackfillLedger(published={NEXT: ran})
    assert statuses(known, SPEC, Sealed(SEALED, ROWS), [DAY])[0].expected_cpu_seconds == CPU_SECONDS_PER_DAY + 14
    sliding = replace(SPEC, window=timedelta(minutes=10), slide=timedelta(minutes=1))
    assert statuses(known, sliding, Sealed(SEALED, ROWS), [DAY])[0].expected_cpu_seconds == CPU_SECONDS_PER_DAY + 21


def test_a_detector_of_several_sources_is_refused_on_history() -> None:
    catalog = read_catalog(here().root / "examples" / "spending")
    with pytest.raises(ConfigError, match=r"only on the stream: it reads several sources \(purchases, addr"):
        catalog.history_source(catalog.detector("spending_after_change"))
    assert catalog.history_source(catalog.detector("high_spending")).name == "purchases"


def test_a_table_of_history_has_rows_two_days_after_the_first_day_that_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = read_catalog(here().root / "examples" / "profiles")
    monkeypatch.setattr(backfill_status, "published_days", lambda *_: {DAY: None})
    why = without_table(Settings(project=tmp_path, state=tmp_path / "state"), catalog)
    days = [DAY + timedelta(days=number) for number in (0, 1, 2, 61, 62)]
    assert [bool(why("usual", day)) for day in days] == [True, True, False, False, True]
    before = DAY - timedelta(days=1)
    assert why("usual", days[1]) == (
        f"comes before table 'usual': none of the 60 days of purchases until {before} is published; "
        "seal these days first: tocsin history seal --source purchases"
    )
    spending = read_catalog(here().root / "examples" / "spending")
    assert without_table(Settings(project=tmp_path, state=tmp_path / "state"), spending)("segments", DAY) == ""
