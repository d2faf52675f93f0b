from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import DAY, day_rows, version
from tocsin.declare.settings import Settings
from tocsin.history.seal_outcomes import seal_outcomes
from tocsin.history.verdict_index import write_index
from tocsin.quality.verdict import Verdict
from tocsin.quality.verdict_files import INDEX, Records, VerdictRecord

BEFORE = DAY - timedelta(days=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


def seal(settings: Settings, day: date, name: str, run_id: str, severity: str | None) -> str:
    """A version of `day` that was judged like that; the path of its report."""
    now, report = datetime.now(UTC), f"quality/logins/{day}/{name}.html"
    published = now if severity in ("pass", "warning") else None
    own = {"sealed_at": now, "report": report, "run_id": run_id, "summary": "events_arrived: rows is 0."}
    made = version(name, severity=severity, published=published).model_copy(update=own)
    day_rows(settings).write(day, made)
    return report


def test_a_night_tells_of_each_day_that_it_has_sealed_or_could_not(settings: Settings) -> None:
    third, fourth, rows = DAY + timedelta(days=1), DAY + timedelta(days=2), day_rows(settings)
    seal(settings, fourth, "v1", "the night before", "critical")
    rows.note(BEFORE - timedelta(days=1), "in the night before", "the night before")
    rows.note(DAY, "a landed file is gone", "night")
    rows.note(third, "no room", "night")
    seal(settings, BEFORE, "v1", "night", "critical")
    good = seal(settings, BEFORE, "v2", "night", "warning")
    seal(settings, DAY, "v2", "night", None)
    retried = seal(settings, third, "v2", "night", "pass")
    refused = seal(settings, fourth, "v2", "night", "critical")
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
    verdict = Verdict(subject="logins", day=DAY, run_id="v1", judged_at=datetime.now(UTC), checks=())
    Records(settings.state).write(VerdictRecord(verdict=verdict), "")
    assert page().count(f'href="logins/{DAY}/v1.html"') == 2, "in the grid, and in the list of failures"
    assert f"{DAY}: not sealed" in page()
    rows.note(DAY, None)
    assert "Warnings and failures" not in page()
