"""Days that could not be sealed: kept until they are, and shown among the judged ones."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from tests.rig.samples.visits import DAY, profile
from tocsin.quality.report_page import index_page
from tocsin.quality.unsealed_days import forget, note, unsealed_days
from tocsin.quality.verdict import Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord

BEFORE = DAY - timedelta(days=1)


def test_a_day_is_kept_with_its_last_reason_until_it_is_sealed(tmp_path: Path) -> None:
    assert not note(tmp_path, "visits", DAY, None)
    assert note(tmp_path, "visits", DAY, "no room")
    first = unsealed_days(tmp_path, "visits")[DAY]
    assert note(tmp_path, "visits", DAY, f"visits {DAY}: a file is gone")
    assert note(tmp_path, "visits", BEFORE, "no room")
    known = unsealed_days(tmp_path, "visits")
    assert {day: one.reason for day, one in known.items()} == {BEFORE: "no room", DAY: "a file is gone"}
    assert known[DAY].at >= first.at
    assert re.fullmatch(r"could not be sealed at 20\d\d-\d\d-\d\d \d\d:\d\d UTC: a file is gone", known[DAY].text)
    assert unsealed_days(tmp_path, "orders") == {}
    assert note(tmp_path, "visits", DAY, None)
    assert list(unsealed_days(tmp_path, "visits")) == [BEFORE]


def test_old_days_are_forgotten_and_nothing_is_left_of_the_last(tmp_path: Path) -> None:
    note(tmp_path, "visits", BEFORE, "no room")
    note(tmp_path, "visits", DAY, "no room")
    forget(tmp_path, "visits", DAY)
    assert list(unsealed_days(tmp_path, "visits")) == [DAY]
    forget(tmp_path, "visits", DAY + timedelta(days=1))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_index_shows_a_day_that_could_not_be_sealed_and_leads_to_what_was_said_before(tmp_path: Path) -> None:
    note(tmp_path, "visits", DAY, "a file is <gone>")
    page = index_page(Records(tmp_path))
    assert f'<span class="day critical" title="{DAY}: not sealed">?</span>' in page
    assert "NOT SEALED" in page
    assert re.search(r"It could not be sealed at [^<]+ UTC: a file is &lt;gone&gt;", page)
    assert "<a " not in page
    records = Records(tmp_path)
    verdict = Verdict(subject="visits", day=DAY, run_id="v1", judged_at=unsealed_days(tmp_path, "visits")[DAY].at,
                      checks=())  # fmt: skip
    records.write(VerdictRecord(verdict=verdict, profile=profile()), "")
    page = index_page(records)
    assert page.count(f'href="visits/{DAY}/v1.html"') == 2, "in the grid, and in the list of failures"
    assert f"{DAY}: not sealed" in page
    note(tmp_path, "visits", DAY, None)
    assert "Warnings and failures" not in index_page(records)
