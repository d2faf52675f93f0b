"""How days stand, and what running them would take."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.samples.backfills import DAY, NEXT, SPEC, attempt, published
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.history.backfill import backfill_status
from tocsin.history.backfill.backfill_ledger import BackfillLedger, End
from tocsin.history.backfill.backfill_planning import Sealed, made_of
from tocsin.history.backfill.backfill_status import (
    CPU_SECONDS_PER_DAY,
    CPU_SECONDS_PER_MILLION,
    BackfillState,
    statuses,
    without_table,
)
from tocsin.setup.paths import here

SEALED = {DAY: "v1", NEXT: "v1"}
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
        "seal these days first: tocsin history seal"
    )
    spending = read_catalog(here().root / "examples" / "spending")
    assert without_table(Settings(project=tmp_path, state=tmp_path / "state"), spending)("segments", DAY) == ""
