from datetime import UTC, date, datetime, timedelta
from typing import Any

from tests.rig.samples.history import DAY, NOON, entry, facts_of, imported, ledger, version
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import LandingLedger
from tocsin.history.seal_planning import Retention, SealFacts, SealPlan, plan

NEXT = DAY + timedelta(days=1)
ONE = timedelta(days=1)


def planned(known: LandingLedger, **changed: Any) -> SealPlan:
    facts: dict[str, Any] = {"versions": {}, "published": {}, "now": NOON, "grace": timedelta(hours=1)}
    facts |= {"kept": timedelta(days=60)} | changed
    return plan(SealFacts(ledger=known, **facts))


def test_a_day_is_ready_when_its_grace_is_over_and_landing_has_read_beyond_it() -> None:
    assert planned(ledger(entry("r1", DAY))).ready == (DAY,)
    early = datetime(2026, 11, 20, 0, 59, tzinfo=UTC)
    assert planned(ledger(entry("r1", DAY)), now=early).waiting == {DAY: "waiting until 2026-11-20 01:00 UTC"}
    behind = planned(ledger(entry("r1", DAY, tick=early)))
    assert behind.ready == ()
    assert "Kafka was read up to 2026-11-20 00:59:00 UTC" in behind.waiting[DAY]
    silent = planned(ledger(entry("r1", DAY, tick=None)))
    assert "is its ingest running?" in silent.waiting[DAY]


def test_a_day_of_imported_events_alone_needs_no_ticks() -> None:
    assert planned(ledger(imported("import-1", DAY))).ready == (DAY,)
    assert planned(ledger(imported("import-1", DAY), entry("r1", DAY, tick=None))).ready == ()


def test_a_day_is_sealed_again_only_when_more_has_landed() -> None:
    sealed: dict[str, Any] = {"versions": {DAY: [version("v1", "r1")]}, "published": {DAY: "v1"}}
    assert planned(ledger(entry("r1", DAY)), **sealed).ready == ()
    assert planned(ledger(entry("r1", DAY), entry("r2", NEXT)), **sealed).ready == ()
    assert planned(ledger(entry("r1", DAY), entry("r2", DAY)), **sealed).ready == (DAY,)


def test_a_day_that_was_sealed_before_it_was_over_is_sealed_again_once_it_is() -> None:
    early = version("v1", "r1").model_copy(update={"sealed_at": datetime(2026, 11, 19, 12, tzinfo=UTC)})
    sealed: dict[str, Any] = {"versions": {DAY: [early]}, "published": {DAY: "v1"}}
    assert planned(ledger(entry("r1", DAY)), **sealed).ready == (DAY,)
    waits = planned(ledger(entry("r1", DAY)), now=datetime(2026, 11, 19, 13, tzinfo=UTC), **sealed)
    assert waits.waiting == {DAY: "waiting until 2026-11-20 01:00 UTC"}


def test_a_refused_day_waits_for_more_and_an_unfinished_one_does_not() -> None:
    refused = version("v1", "r1", published=None, severity="critical")
    assert planned(ledger(entry("r1", DAY)), versions={DAY: [refused]}).ready == ()
    assert planned(ledger(entry("r1", DAY), entry("r2", DAY)), versions={DAY: [refused]}).ready == (DAY,)
    for severity in (None, "pass", "warning"):
        unfinished = version("v1", "r1", published=None, severity=severity)
        assert planned(ledger(entry("r1", DAY)), versions={DAY: [unfinished]}).ready == (DAY,)
    published = {"versions": {DAY: [version("v1", "r1", published=None)]}, "published": {DAY: "v1"}}
    assert planned(ledger(entry("r1", DAY)), **published).ready == (), "it was killed behind the commit"


def test_a_refused_day_is_judged_again_once_the_rules_have_changed() -> None:
    refused = version("v1", "r1", published=None, severity="critical").model_copy(update={"rules": "old"})
    assert planned(ledger(entry("r1", DAY)), versions={DAY: [refused]}, rules="old").ready == ()
    assert planned(ledger(entry("r1", DAY)), versions={DAY: [refused]}, rules="new").ready == (DAY,)


def test_a_day_of_which_an_import_was_withdrawn_is_sealed_again_without_it_if_something_is_left() -> None:
    back = imported("import-1").model_copy(update={"columns": {}})
    assert back.imported is not None
    back = back.model_copy(update={"imported": back.imported.model_copy(update={"withdrawn": {DAY: NOON}})})
    sealed: dict[str, Any] = {"versions": {DAY: [version("v1", "import-1", "import-2")]}, "published": {DAY: "v1"}}
    assert planned(ledger(back, imported("import-2", DAY)), **sealed).ready == (DAY,)
    again: dict[str, Any] = {"versions": {DAY: [version("v2", "import-2")]}, "published": {DAY: "v2"}}
    assert planned(ledger(back, imported("import-2", DAY)), **again).ready == ()
    assert planned(ledger(back), **again).ready == ()


def test_a_day_that_was_rolled_back_stays_so() -> None:
    versions = {DAY: [version("v1", "r1"), version("v2", "r1", "r2")]}
    rolled: dict[str, Any] = {"versions": versions, "published": {DAY: "v1"}}
    assert planned(ledger(entry("r1", DAY), entry("r2", DAY)), **rolled).ready == ()
    assert planned(ledger(entry("r1", DAY), entry("r2", DAY), entry("r3", DAY)), **rolled).ready == (DAY,)


def test_a_day_without_events_is_sealed_when_landing_has_covered_it_and_a_missing_one_is_not() -> None:
    assert planned(ledger(entry("r1"))).ready == (DAY,), "landing began the day before"
    assert planned(ledger(imported("import-1", DAY - timedelta(days=2), DAY))).ready == (DAY - timedelta(days=2), DAY)
    assert planned(ledger(entry("r1", tick=None))).ready == ()


def test_days_further_back_than_history_is_kept_are_told_and_not_sealed() -> None:
    old = date(2026, 9, 20)
    known: dict[str, Any] = {"versions": {DAY: [version("v1", "r1")]}, "published": {DAY: "v1"}}
    found = planned(ledger(entry("r1", DAY, old, old + timedelta(days=1))), **known)
    assert (found.too_old, found.ready[0]) == ((old,), old + timedelta(days=1))


def retention(known: LandingLedger, now: datetime = NOON, *published: DayVersion) -> Retention:
    days = {one.facts.day: one for one in published}
    versions, names = {day: [one] for day, one in days.items()}, {day: one.version for day, one in days.items()}
    return Retention.of(known, versions, names, now, timedelta(days=60))


def test_imported_days_of_any_age_are_sealed_and_kept_as_long_as_others_from_their_import_on() -> None:
    old = date(2014, 7, 1)
    known: dict[str, Any] = {"versions": {DAY: [version("v1", "r1")]}, "published": {DAY: "v1"}}
    found = planned(ledger(imported("import-1", old), entry("r1", DAY)), **known)
    assert (found.too_old, old in found.ready) == ((), True)
    landed = ledger(imported("import-1", old))
    newest = [version("v1").model_copy(update={"facts": facts_of("v1", 1).model_copy(update={"day": DAY + 59 * ONE})})]
    assert retention(landed, NOON + 59 * ONE, *newest).has(old)
    newest[0] = newest[0].model_copy(update={"facts": newest[0].facts.model_copy(update={"day": DAY + 62 * ONE})})
    assert not retention(landed, NOON + 62 * ONE, *newest).has(old)


def test_a_clock_that_is_ahead_and_empty_days_outdate_nothing() -> None:
    ahead = NOON + 70 * ONE
    full, first = version("v1"), DAY - 59 * ONE
    empty = full.model_copy(update={"facts": facts_of("v2", 0).model_copy(update={"day": DAY + 69 * ONE})})
    for published in ([full], [full, empty]):
        assert retention(ledger(), ahead, *published).has(first)
        assert not retention(ledger(), ahead, *published).has(first - ONE)
    assert retention(ledger(), ahead).has(date(2005, 1, 1)), "nothing was ever published"
