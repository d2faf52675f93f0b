"""A bad day between two good ones, sealed by the program itself: the real gate, the suites that are shipped."""

import html
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.project import copy_project
from tests.spark.sealing import DAY, History, login
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.history import sealing
from tocsin.history.care import verify
from tocsin.history.day_status import DayStatus, known, statuses
from tocsin.history.places import end
from tocsin.history.seal_planning import plan
from tocsin.job import main
from tocsin.platform import logs
from tocsin.quality.data_drift import weekdays_before
from tocsin.quality.day_profile import Profile
from tocsin.quality.verdict import Verdict
from tocsin.quality.verdict_files import INDEX, Records, VerdictRecord

BEFORE, AFTER = DAY - timedelta(days=1), DAY + timedelta(days=1)
EVENTS = 240

Events = list[dict[str, Any]]


def logins(day: date, count: int = EVENTS, hours: int = 24) -> Events:
    """`count` events, spread over the first `hours` of `day`."""
    gap, first = hours * 3600 / count, day.toordinal() * 100_000
    return [login(first + n, seconds=n * gap, day=day, ip_address=f"192.0.2.{n % 9}") for n in range(count)]


@dataclass
class Program:
    """`spark_jobs/seal.py` on a project of its own, which is the shipped one but keeps its history for ten years."""

    history: History
    outcomes: list[sealing.SealingOutcome] = field(default_factory=list)

    @property
    def outcome(self) -> sealing.SealingOutcome:
        return self.outcomes[-1]

    def land(self, *runs: Events) -> None:
        for events in (logins(BEFORE), *runs, logins(AFTER)):
            self.history.land(events)

    def seal(self, *days: date) -> int:
        """Its exit code."""
        given = [f"--day={day}" for day in days or (BEFORE, DAY, AFTER)]
        return main(["seal", "logins", *given])

    def published(self) -> dict[date, int]:
        """How many events of each day count; by the files, and by what the versions say of them."""
        with self.history.table() as table:
            versions = {day: table.rows.version(day, name) for day, name in table.published().items()}
            assert sum(table.files().values()) == sum(one.facts.rows for one in versions.values())
        return {day: version.facts.rows for day, version in sorted(versions.items())}

    def verdict(self, day: date = DAY) -> Verdict:
        return next(one.verdict for one in self.outcome.sealed if one.day == day)

    def page(self, day: date = DAY) -> str:
        """What a person reads on the report of `day`."""
        report = self.verdict(day).report
        assert report is not None
        return _text(self.history.settings.state / report)

    def index(self) -> str:
        return _text(Records(self.history.settings.state).folder / INDEX)

    def listed(self) -> dict[date, DayStatus]:
        """What `tocsin history list` shows."""
        with self.history.table() as table:
            facts = known(self.history.settings, self.history.source, table)
        return {one.day: one for one in statuses("logins", facts)}


@pytest.fixture
def program(starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    project = tmp_path / "project"
    copy_project(project, "sources", "expectations")
    declared = project / "sources" / "logins.toml"
    declared.write_text(f"history_days = 3650\n{declared.read_text()}")
    monkeypatch.setenv("TOCSIN_PROJECT", str(project))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    made = Program(History(tmp_path / "state", read_catalog(project).source("logins")))
    made.history.settings = Settings(state=tmp_path / "state", project=project)

    def recorded(*given: Any, sealed: Any = sealing.seal) -> sealing.SealingOutcome:
        made.outcomes.append(sealed(*given))
        return made.outcome

    monkeypatch.setattr(sealing, "seal", recorded)
    monkeypatch.setattr(logs, "configure", lambda _job: None)
    return made


def remember(state: Path) -> None:
    """The same weekday of the eight weeks before DAY, which were good."""
    records = Records(state)
    for day in weekdays_before(DAY):
        verdict = Verdict(subject="logins", day=day, run_id="v1", judged_at=datetime.now(UTC), checks=())
        profile = Profile(source="logins", day=day, version="v1", figures={"rows": EVENTS, "hours": 24})
        records.write(VerdictRecord(verdict=verdict, profile=profile), "")


def _text(path: Path) -> str:
    body = path.read_text().partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@dataclass(frozen=True)
class Bad:
    """What lands for DAY, run by run; the exit code, one of the worst checks that fail, and words on its page.

    Its neighbours are sealed with it where `beside` says so: one critical day and one with a warning show their fate.
    """

    landed: tuple[Events, ...]
    code: int
    check: str
    words: tuple[str, ...]
    counted: int | None = None
    weeks: bool = True
    beside: bool = False


BAD = {
    "empty": Bad((), 20, "events_arrived", ("Not one login on a whole day", "Hours with events 0 of 24"), beside=True),
    "half of its hours with half of its events": Bad(
        (logins(DAY, EVENTS // 2, hours=12),),
        20,
        "more_than_half_of_the_hours",
        ("Hours with events 12 of 24", "Half of the day is missing", "Observed 12 Allowed more than 12"),
    ),
    "the same, with nothing to compare with": Bad(
        (logins(DAY, EVENTS // 2, hours=12),),
        20,
        "more_than_half_of_the_hours",
        (
            *("Hours with events 12 of 24", "Half of the day is missing", "The log ends long before the day does"),
            *("1 had nothing to compare with", "120, nothing to compare with"),
        ),
        weeks=False,
    ),
    "just above ten times as many": Bad(
        (logins(DAY, EVENTS * 10 + 1),),
        20,
        "not_ten_times_as_many",
        ("A sender repeats itself", "Observed 2,401 Allowed at most 2,400", "usually 240"),
    ),
    "all of it landed twice": Bad(
        (logins(DAY), logins(DAY)),
        10,
        "few_duplicates",
        ("Duplicates dropped 240 50.00% of landed events", "a job that crashes again and again"),
        counted=EVENTS,
        beside=True,
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_day_is_told_and_held_when_it_is_critical_and_its_neighbours_are_published(
    bad: Bad, program: Program
) -> None:
    if bad.weeks:
        remember(program.history.settings.state)
    program.land(*bad.landed)
    neighbours = (BEFORE, AFTER) if bad.beside else ()
    days = sorted((DAY, *neighbours))
    assert program.seal(*days) == bad.code
    assert [one.day for one in program.outcome.sealed] == days
    assert [str(program.verdict(day).severity) for day in neighbours] == ["pass"] * len(neighbours)
    counted = {} if bad.counted is None else {DAY: bad.counted}
    assert program.published() == dict.fromkeys(neighbours, EVENTS) | counted
    assert verify(program.history.settings, program.history.source, checksums=True) == []

    verdict, page = program.verdict(), program.page()
    assert bad.check in {check.name for check in verdict.failed if check.severity is verdict.severity}
    said = "has warnings" if bad.counted else "is not published"
    assert f"logins on {DAY} {said}" in verdict.text
    assert ("PUBLISHED WITH WARNINGS" if bad.counted else "NOT PUBLISHED") in page
    assert [words for words in (bad.check, *bad.words) if words not in page] == []
    assert bad.check in program.index()
    state = program.listed()[DAY]
    assert (state.state, state.severity, state.rows) == (
        "published" if bad.counted else "refused",
        verdict.severity,
        bad.counted,
    )


FAULTS = (
    ("rows", "known_action", {"column": "acton"},
     "expectations[1].kwargs.column: 'acton' is not a column of the source; did you mean 'action'?"),
    ("day", "few_duplicates", {"max_value": "0.05"},
     "expectations[6].kwargs.max_value: must be a number, not '0.05'"),
)  # fmt: skip
"""A rule of the suite for a stage, what is wrong with its arguments, and what is said of it."""


def test_suites_with_faults_keep_all_days_as_they_are_until_they_are_mended(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    program.land(logins(DAY))
    assert program.seal(BEFORE) == 0
    shipped, said = {}, []
    for stage, rule, change, fault in FAULTS:
        path = program.history.settings.project / "expectations" / f"logins.{stage}.json"
        shipped[path] = path.read_text()
        suite = json.loads(shipped[path])
        next(one for one in suite["expectations"] if one["meta"]["name"] == rule)["kwargs"] |= change
        path.write_text(json.dumps(suite, indent=1))
        said.append(rf"{re.escape(str(path))}:\d+: {re.escape(fault)}")
    capsys.readouterr()
    assert program.seal() == 2
    told = capsys.readouterr().err
    assert [fault for fault in said if not re.search(fault, told)] == [], told
    assert program.published() == {BEFORE: EVENTS}
    assert {day for day, _, _ in program.history.places.version_folders()} == {BEFORE}, "nothing was even begun"
    for path, text in shipped.items():
        path.write_text(text)
    assert program.seal(DAY) == 0
    assert program.published() == {BEFORE: EVENTS, DAY: EVENTS}


def test_a_corrupt_landed_file_fails_its_day_alone_which_is_told_until_it_is_sealed(program: Program) -> None:
    program.land(logins(DAY))
    assert program.seal(DAY) == 0
    broken = program.history.land(logins(DAY, 60))
    path = program.history.settings.history_folder / broken.files[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-200] + bytes(200))
    assert program.seal() == 1
    assert list(program.outcome.failed) == [DAY]
    why = program.outcome.failed[DAY]
    assert f"logins {DAY}: a landed file is broken: {path}" in why
    assert f"remove {program.history.places.ledger}/{broken.run}.json and all entries of later runs" in why
    assert program.published() == {BEFORE: EVENTS, DAY: EVENTS, AFTER: EVENTS}, "what counted before stays"
    standing = program.listed()[DAY]
    assert (standing.state, standing.rows) == ("outdated", EVENTS)
    said = why.removeprefix(f"logins {DAY}: ")
    assert standing.note.startswith("could not be sealed at 20")
    assert standing.note.endswith(said)
    assert f"NOT SEALED It {standing.note}" in program.index()
    path.write_bytes(content)
    assert program.seal(DAY) == 0
    assert (program.listed()[DAY].state, program.listed()[DAY].note) == ("published", "")
    assert "NOT SEALED" not in program.index()


def test_a_day_of_which_most_went_to_quarantine_is_held_until_that_is_replayed(program: Program) -> None:
    program.history.land(logins(DAY, 1_000), quarantined={BEFORE: 300, DAY: 1_001})
    program.land()
    assert program.seal() == 20
    assert program.published() == {BEFORE: EVENTS, AFTER: EVENTS}, "300 of 540 are too few to stop a day"
    (check,) = [one for one in program.verdict().failed if one.severity is program.verdict().severity]
    assert (check.name, check.observed) == ("quarantine", "50.02%, 1,001 of 2,001 records")
    page = program.page()
    assert "NOT PUBLISHED" in page
    assert "In quarantine 1,001 50.02% of all records" in page
    assert "Many records were unusable: fix the source or its declaration, and replay" in page
    program.history.land([login(5_000_000 + n, day=DAY) for n in range(1_001)])
    with program.history.table() as table:
        assert DAY in plan(known(program.history.settings, program.history.source, table)).ready, "without being told"
    assert program.seal(DAY) == 10
    assert program.published()[DAY] == 2_001
    assert "quarantine" in {one.name for one in program.verdict().failed}, "a third of what came in is still told"


@pytest.mark.parametrize(
    ("was", "code", "said"),
    [
        ({}, 0, "size was declared after 120 events had landed, and is missing in them"),
        ({"size": "string"}, 10, "size was string in 120 events and is int now: 119 values do not fit and are missing"),
        ({"size": "int", "gone": "int"}, 0, "gone is no longer declared, and left out of 120 events"),
    ],
    ids=["came", "type", "went"],
)
def test_a_schema_that_changes_within_the_day_is_told(
    was: dict[str, str], code: int, said: str, program: Program
) -> None:
    declared, history = program.history.settings.project / "sources" / "logins.toml", program.history
    old = history.source.model_copy(update={"columns": history.source.columns | was})
    declared.write_text(declared.read_text() + 'size = "int"\n')
    history.source = read_catalog(history.settings.project).source("logins")
    morning, evening = logins(DAY)[: EVENTS // 2], logins(DAY)[EVENTS // 2 :]
    values: dict[str, list[Any]] = {"string": ["7", *["seven"] * (len(morning) - 1)], "int": [7] * len(morning)}
    before = [event | {name: values[kind][n] for name, kind in was.items()} for n, event in enumerate(morning)]
    history.land(before, source=old)
    history.land([event | {"size": 7} for event in evening])
    assert program.seal(DAY) == code
    assert program.published() == {DAY: EVENTS}
    (check,) = [one for one in program.verdict().checks if one.name == "one_declaration"]
    assert check.observed == said
    assert said in program.page()


def test_clocks_that_differ_around_midnight_cost_no_event_and_are_told(program: Program) -> None:
    """A sender that is ahead within what ingest lets pass, and one whose events of the evening came in the night.

    What is further ahead never gets here: it waits in quarantine as `time_ahead`.
    """
    of_day, midnight = logins(DAY), end(DAY)
    ahead = [
        login(90_000 + n, event_time=midnight + timedelta(seconds=n), ingested_at=midnight - timedelta(seconds=1))
        for n in range(3)
    ]
    behind = [
        login(91_000 + n, event_time=midnight - timedelta(seconds=9 - n), ingested_at=midnight + timedelta(seconds=20))
        for n in range(9)
    ]
    program.land(of_day + ahead, behind)
    assert program.seal() == 10
    assert program.published() == {BEFORE: EVENTS, DAY: EVENTS + 9, AFTER: EVENTS + 3}
    assert [check.name for check in program.verdict().failed] == ["few_late"]
    page = program.page()
    assert "Late 9 not counted by the stream" in page
    assert "What comes later than the lateness of the source is not counted by the stream" in page
    assert str(program.verdict(AFTER).severity) == "pass"
