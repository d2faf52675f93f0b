"""How days stand that have no version, or none that is new enough."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.rig.samples import sealed_days
from tests.rig.samples.history import DAY, NOON, entry, imported, ledger, version
from tests.rig.samples.sealed_days import LOGINS, ROOT
from tocsin.declare.settings import Settings
from tocsin.history.day_status import DayState, DayStatus, list_days, statuses, why_not
from tocsin.history.day_versions import Unsealed
from tocsin.history.landing_ledger import LandingLedger
from tocsin.history.seal_planning import SealFacts

FAILED = {DAY: Unsealed(reason="a landed file is broken", at=datetime(2026, 11, 20, 2, 10, tzinfo=UTC))}
SEAL = "tocsin history seal --source logins --day"
SAID = "could not be sealed at 2026-11-20 02:10 UTC: a landed file is broken"


def days(known: LandingLedger, **changed: Any) -> dict[date, DayStatus]:
    facts: dict[str, Any] = {"versions": {}, "published": {}, "now": NOON, "grace": timedelta(hours=1)}
    facts |= {"kept": timedelta(days=60)} | changed
    return {one.day: one for one in statuses("logins", SealFacts(ledger=known, **facts))}


def back(count: int) -> date:
    return DAY - timedelta(days=count)


def test_a_day_that_could_not_be_sealed_says_when_and_why() -> None:
    failed = days(ledger(entry("r1", DAY)), unsealed=FAILED)[DAY]
    assert (failed.state, failed.note) == (DayState.FAILED, SAID)
    versions = {DAY: [version("v1", "r1")]}
    outdated = days(
        ledger(entry("r1", DAY), entry("r2", DAY)), versions=versions, published={DAY: "v1"}, unsealed=FAILED
    )[DAY]
    assert (outdated.state, outdated.version, outdated.note) == (DayState.OUTDATED, "v1", SAID)
    refused = {DAY: [version("v1", "r1", published=None, severity="critical")]}
    again = days(ledger(entry("r1", DAY), entry("r2", DAY)), versions=refused, unsealed=FAILED)[DAY]
    assert (again.state, again.note) == (DayState.FAILED, SAID)
    assert days(ledger(), unsealed=FAILED)[DAY].state is DayState.FAILED


def test_a_day_that_cannot_be_read_says_why_and_which_command_makes_it(tmp_path: Path) -> None:
    settings, today = Settings(state=tmp_path, project=ROOT), datetime.now(UTC).date()
    why = why_not(settings, LOGINS)
    seal = "`tocsin history seal --source logins`"
    assert why(DAY) == (
        f"is not published: nothing has landed for it; run {seal} if Kafka still has it, else "
        "`tocsin history import --source logins FILE` before"
    )
    assert why(today) == f"is not published: it is not over yet; then {seal} publishes it"
    assert why(today + timedelta(days=1)) == "is not published: it has not begun yet"
    sealed_days.landed(settings, "r1", 5)
    assert why_not(settings, LOGINS)(DAY) == f"is not published: it has not been sealed since it was over; run {seal}"
    sealed_days.sealed(settings, "v1", 5, severity="critical")
    assert why_not(settings, LOGINS)(DAY).startswith(
        "is not published: the quality gate refused it; the verdict is critical."
    )


def test_a_refused_day_says_why_and_what_judges_it_again_also_while_an_earlier_version_counts(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, project=ROOT)
    sealed_days.landed(settings, "r1", 5)
    accept = f"tocsin history publish logins --day {DAY} --by NAME --reason TEXT"
    mended = f"the verdict is critical. When the rule or the data is mended: {SEAL} {DAY}"
    again = f"{mended}. To publish it as it is: {accept}"
    steps = [("critical", (DayState.REFUSED, again)), ("pass", (DayState.PUBLISHED, ""))]
    for number, (severity, found) in enumerate([*steps, ("critical", (DayState.PUBLISHED, again))]):
        sealed_days.sealed(settings, f"v{number}", 5, severity=severity)
        (one,) = list_days(settings, LOGINS)
        assert (one.state, one.note) == found


def test_days_between_others_of_which_nothing_landed_are_missing() -> None:
    found = days(ledger(imported("import-1", back(4), back(1)), entry("r1", DAY)))
    assert [day for day, one in found.items() if one.state is DayState.MISSING] == [back(3), back(2)]
    assert list(found) == [back(4), back(3), back(2), back(1), DAY]
    assert "tocsin history import" in found[back(3)].note
    alone = days(ledger(imported("import-1", back(2), DAY)))
    assert alone[back(1)].state is DayState.MISSING, "also where landing has never run"


def test_days_that_are_no_longer_history_or_that_landing_follows_are_not_missing() -> None:
    old = days(ledger(imported("import-1", back(90), DAY)))
    assert min(day for day, one in old.items() if one.state is DayState.MISSING) == back(59)
    followed = ledger(entry("r1", back(1), tick=None), entry("r2", DAY + timedelta(days=3), at=1, tick=None))
    assert not [one for one in days(followed, now=NOON + timedelta(days=9)).values() if one.state is DayState.MISSING]
    assert days(ledger()) == {}
