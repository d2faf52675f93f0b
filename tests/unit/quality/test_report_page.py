"""The pages: that they tell all, lead somewhere, load nothing, and show values from data as text."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.visits import DAY, VISITS, profile
from tocsin.quality.data_drift import drift_checks, usual_figures, weekdays_before
from tocsin.quality.day_profile import COLUMN_FIGURES, Profile, figure_types
from tocsin.quality.report_page import day_page, index_page
from tocsin.quality.verdict import Acceptance, Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import INDEX, Records, VerdictRecord

NASTY = "<script>alert(1)</script>\x1b[2J\u202e\"'&"


class Read(HTMLParser):
    """What a page says, loads and leads to; fails on tags that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.links: list[str] = []
        self.loads: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self.links.append(given["href"] or "")
        self.loads += [f"{tag} {value}" for name, value in attrs if name in ("src", "xlink:href", "data")]
        self.loads += [tag] if tag in ("script", "link", "iframe", "img") else []
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.text += " " * (tag == "td")

    def handle_data(self, data: str) -> None:
        self.text += data if self._open[-1:] != ["style"] else ""


def check(name: str = "rule", **fields: Any) -> Check:
    own: dict[str, Any] = {"stage": CheckStage.DAY, "severity": Severity.CRITICAL, "passed": False, "observed": "4"}
    return Check(**(own | {"name": name, "limit": "at most 3"} | fields))


def record(day: Any = DAY, *checks: Check, of: Profile | None = None) -> VerdictRecord:
    at = datetime(2026, 11, 22, 2, tzinfo=UTC)
    return VerdictRecord(
        verdict=Verdict(subject="visits", day=day, run_id="v1", judged_at=at, checks=checks), profile=of
    )


def test_a_page_tells_what_failed_and_what_held(tmp_path: Path) -> None:
    broken = check("broken_rule", meaning="It is bad", samples=("raw.visits/0/42",))
    shown = record(DAY, broken, check("good", passed=True), of=profile())
    text = Read(day_page(shown, Records(tmp_path), [], VISITS)).text
    words = ("visits, Saturday, 21 November 2026", "NOT PUBLISHED", "1 of 2 checks failed: broken_rule.", "It is bad.")
    for what in (*words, "raw.visits/0/42", "at most 3", "Visits of the web shop", "2,400", "24 of 24"):
        assert what in text
    assert text.index("broken_rule") < text.index("good")


def test_a_rule_that_had_nothing_to_compare_with_does_not_look_as_if_it_held(tmp_path: Path) -> None:
    first = record(DAY, check("good", passed=True), check("first", passed=True, judged=False))
    page = day_page(first, Records(tmp_path), [], VISITS)
    assert "1 check passed, 1 had nothing to compare with." in Read(page).text
    assert "4, nothing to compare with" in Read(page).text
    assert re.findall(r'class="mark"><span title="([^"]+)">(.)', page) == [("passed", "✓"), ("not judged", "-")]
    assert first.verdict.text == "visits on 2026-11-21 passed: 1 check passed, 1 had nothing to compare with."


def test_values_from_data_are_text(tmp_path: Path) -> None:
    bad = check("r", observed=NASTY, limit=NASTY, about=NASTY, samples=(NASTY,), meaning=NASTY)
    nasty = VISITS.model_copy(update={"title": NASTY, "owner": NASTY})
    records = Records(tmp_path)
    page = day_page(record(DAY, bad, of=profile()), records, [], nasty)
    assert Read(page).loads == []
    assert not re.search(r"https?:|url\(|@import", page)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert r"<script>alert(1)</script>\x1b[2J\u202e" in Read(page).text
    records.write(record(DAY, check(NASTY), of=profile()), page)
    assert Read(index_page(records, {})).loads == []


def past() -> list[Profile]:
    return [profile(day, 2400) for day in weekdays_before(DAY)]


def test_each_column_tells_what_its_values_are(tmp_path: Path) -> None:
    of = dict.fromkeys(figure_types(VISITS), 3) | {"last_event": None, "ok.true_ratio": 0.25} | profile().figures
    numbers = {f"amount.{name}": 1.5 for name in ("minimum", "maximum", "mean", "median", "p95")}
    empty = {f"tries.{name}": None for name in COLUMN_FIGURES["int"]} | {"tries.nulls": 2400}
    today = profile().model_copy(update={"figures": of | numbers | empty})
    text = " ".join(Read(day_page(record(DAY, of=today), Records(tmp_path), [], VISITS)).text.split())
    assert "amount double 300.00% 1.5 to 1.5, mean 1.5, median 1.5, 95 % below 1.5" in text
    assert "page string 25.00% 3 3 bytes at most" in text
    assert "ok boolean 300.00% 25.0% true" in text


def test_drift_is_drawn_beside_the_weeks_before(tmp_path: Path) -> None:
    today, before = profile(rows=1000), past()
    checks = drift_checks(today, usual_figures(before))
    page = day_page(record(DAY, *checks, of=today), Records(tmp_path), before, VISITS)
    text = " ".join(Read(page).text.split())
    assert "Compared with the Saturdays before" in text
    assert "rows 1,000 2,400 2,160 to 2,640" in text
    assert "usual on Saturdays (median of 8)" in text
    assert page.count("<polyline") == 2, "rows and page.null_ratio"
    young = Read(day_page(record(DAY, of=today), Records(tmp_path), before[:1], VISITS)).text
    assert "What is usual is known once four Saturdays are; so far: 1." in young


@pytest.mark.parametrize("rows", [0, 1, 10**15])
def test_days_of_any_size_can_be_drawn(tmp_path: Path, rows: int) -> None:
    empty = {"last_event": None, "page.null_ratio": None, "hours": 0} if not rows else {}
    today = profile(rows=rows).model_copy(update={"figures": profile(rows=rows).figures | empty})
    page = day_page(record(DAY, of=today), Records(tmp_path), past(), VISITS)
    assert Read(page).text
    assert not re.search(r"(nan|inf)\b", page)


def test_pages_lead_to_each_other(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for back in range(3, -1, -1):
        day = DAY - timedelta(days=back)
        of = record(day, *([check()] if back == 2 else []), of=profile(day))
        records.write(of, day_page(of, records, [], VISITS))
        records.write_index(index_page(records, {}))
    index = Read((records.folder / INDEX).read_text())
    assert len(index.links) == 4 + 1, "four days, and the one that was not well again"
    assert all((records.folder / link).is_file() for link in index.links)
    page = tmp_path / records.place("visits", DAY, "v1")
    links = Read(page.read_text()).links
    assert len(links) == 1 + 4 + 1, "the index, four days, the JSON"
    assert all((page.parent / link).resolve().is_file() for link in links)


def test_an_index_of_nothing_says_so(tmp_path: Path) -> None:
    assert "No day has been judged yet." in Read(index_page(Records(tmp_path), {})).text


def test_a_refused_day_is_red_and_names_what_to_type_until_it_is_accepted(tmp_path: Path) -> None:
    records, refused = Records(tmp_path), record(DAY, check())
    page = day_page(refused, records, [], VISITS)
    assert f"<code>tocsin history publish visits --day {DAY} --by NAME --reason TEXT</code>" in page
    assert f"<code>tocsin history seal --source visits --day {DAY}</code>" in page
    assert 'class="card verdict critical"' in page
    records.write(refused, page)
    assert f'title="{DAY}: not published"' in index_page(records, {})
    who = Acceptance(by="ann", at=datetime(2026, 11, 23, tzinfo=UTC), reason=NASTY)
    accepted = VerdictRecord(verdict=refused.verdict.model_copy(update={"accepted": who}))
    text = Read(day_page(accepted, records, [], VISITS)).text
    assert "PUBLISHED, ACCEPTED BY ANN" in text
    assert "Accepted by ann at 2026-11-23 00:00 UTC: <script>" in text
    assert "tocsin history" not in text
    assert "still counts" not in text
