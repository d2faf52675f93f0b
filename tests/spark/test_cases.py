"""Cases in the ways that need no broker: what is expected comes from the cases, and a planted fault is found."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tocsin import Case, at, email, urgent
from tocsin.cases.case_report import CaseOutcome, DetectorOutcome, Way
from tocsin.cases.spark.case_lab import run_mutants
from tocsin.cases.spark.case_run import CaseRun
from tocsin.cases.spark.prepared_case import prepare
from tocsin.cases.spark.stream_ways import RealTimeWay
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError

pytestmark = pytest.mark.usefixtures("quick_batches")

ROOT = Path(__file__).parents[2]
STREAMS = [way for way in Way if way is not Way.REAL_TIME]  # tests/e2e has that one
HEAD = '''"""Sums."""
from pyspark.sql import functions as F

from tocsin import Case, Entities, Levels, at, detector, email, line, tick


@detector(source="logins", entity="user_id", window={window}, levels=Levels({levels}), {more}owner="a@example.com",
          runbook="r", stage="draft")
def detect(events):
    {body}


CASES = [
    {cases}
]
'''
AVERAGE = """counted = events.groupBy("window", "user_id").agg(F.avg(F.length("ip_address")).alias("score"))
    return counted.where("score < 100")"""
ONE = 'Case("one", events=at("12:00:00", user_id="a", ip_address="1234").then(after="12 seconds"), expect=[{}])'

Run = Callable[..., DetectorOutcome]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "detectors").mkdir()
    shutil.copytree(ROOT / "sources", tmp_path / "sources")
    return tmp_path


@pytest.fixture
def run(spark: SparkSession, project: Path) -> Run:
    """Runs the cases of a detector that is written from HEAD."""

    def write_and_run(body: str, *cases: str, ways: list[Way] | None = None, **declared: str) -> DetectorOutcome:
        fields = {"window": '"10 seconds"', "levels": "email=3", "more": ""} | declared
        (project / "detectors" / "made.py").write_text(HEAD.format(body=body, cases=",\n    ".join(cases), **fields))
        made = CaseRun(spark, read_catalog(project), "made", project / "run")
        return made.run(STREAMS if ways is None else ways, no_broker)

    return write_and_run


def no_broker() -> RealTimeWay:
    raise AssertionError("no way needs it")


def problems(outcome: DetectorOutcome) -> list[tuple[str, list[str], str, str]]:
    assert outcome.faults == []
    return [(case.name, [one.way, *one.others], one.expected, one.found or one.why) for case in outcome.cases
            for one in case.problems]  # fmt: skip


def faults(run: Run, body: str, *cases: str, **declared: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        run(body, *cases, **declared)
    return [str(fault).partition("made.py:")[2] for fault in caught.value.faults]


def test_a_shipped_detector_agrees_in_all_ways_and_each_mutant_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    catalog = read_catalog(ROOT)
    made = CaseRun(spark, catalog, "failed_logins", tmp_path / "run")
    ways = [way for way in STREAMS if way is not Way.EACH_EVENT]  # the small detectors below have that one
    outcome = made.run(ways, no_broker)
    assert problems(outcome) == []
    assert [(one.way, one.skipped) for one in outcome.ways] == [(way, "") for way in ways]
    generated = [case for case in outcome.cases if case.is_generated]
    assert sorted(len(case.found) for case in generated) == [0, 0, 0, 1, 1, 1]
    mutants = run_mutants(spark, catalog, made, tmp_path / "mutants")
    assert len(mutants) >= 6
    assert [(one.line, one.change) for one in mutants if not one.killed_by] == []


def test_silence_is_found_alike_as_a_batch_and_on_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    made = CaseRun(spark, read_catalog(ROOT / "examples" / "heartbeats"), "silent_instance", tmp_path / "run")
    outcome = made.run([Way.BATCH, Way.SHUFFLED], no_broker)
    assert problems(outcome) == []
    silent = next(case for case in outcome.cases if case.name.startswith("nobody"))
    assert silent.timeline == ["12:00:00  tick  x 2 every 120 s until 12:02:00"]
    assert silent.windows == ["12:00:00 to 12:01:00  0 events", "12:01:00 to 12:02:00  0 events"]


USERS = """title = "t"
owner = "a@example.com"
source = "logins"
key = "user_id"
[schema]
user_id = "string"
"""
QUICK = [Way.BATCH, Way.SHUFFLED]
EACH_WAY = pytest.mark.parametrize("ways", [QUICK, pytest.param(STREAMS, marks=pytest.mark.long)])
COUNT = 'return events.groupBy("window", "user_id").agg(F.count("*").alias("score"))'


def missing(*found: tuple[str, str]) -> str:
    """What is expected of silence: users, each with the start of a window without an event."""
    return "[" + ", ".join(f'email(user_id="{user}", window="{start}", score=1)' for user, start in found) + "]"


@EACH_WAY
def test_the_keys_of_a_table_are_expected_while_they_hold(run: Run, project: Path, ways: list[Way]) -> None:
    """b is there from the middle of the second window on, so it is expected in the third."""
    (project / "tables").mkdir()
    (project / "tables" / "users.toml").write_text(USERS)
    tables = 'tables={"users": at("11:00:00", user_id="a").then(at("12:00:15", user_id="b"))}'
    found = missing(("a", "12:00:00"), ("a", "12:00:10"), ("a", "12:00:20"), ("b", "12:00:20"))
    events = 'events=at("12:00:00", user_id="x").then(tick("12:00:30"))'
    cases = f'Case("b comes later", {events}, expect={found}, {tables})', f'Case("no rows", {events}, expect=[])'
    declared = {"levels": "email=0", "more": 'expect=Entities(table="users"), '}
    assert problems(run(COUNT, *cases, ways=ways, **declared)) == []


@pytest.mark.long  # test_absence.py has them on a stream and on history
def test_those_who_were_seen_are_expected_and_then_forgotten(run: Run) -> None:
    """Who was seen in one window is expected in the next two."""
    once = 'at("12:00:03", user_id="a").then(at("12:00:14", user_id="b")).then(tick("12:00:50"))'
    found = missing(("a", "12:00:10"), ("a", "12:00:20"), ("b", "12:00:20"), ("b", "12:00:30"))
    again = 'at("12:00:03", user_id="a").then(at("12:00:25", user_id="a")).then(tick("12:00:40"))'
    cases = (
        f'Case("forgotten", events={once}, expect={found})',
        f'Case("seen again", events={again}, expect={missing(("a", "12:00:10"), ("a", "12:00:30"))})',
        'Case("nobody yet", events=tick("12:00:00").then(tick("12:01:00")), expect=[])',
    )
    declared = {"levels": "email=0", "more": 'expect=Entities(seen_within="20 seconds"), '}
    assert problems(run(COUNT, *cases, ways=STREAMS, **declared)) == []


def test_a_final_score_is_written_when_its_window_closes_in_all_ways(run: Run) -> None:
    both = [f'email(user_id="a", window="{start}", score=4)' for start in ("12:00:00", "12:00:10")]
    outcome = run(AVERAGE, ONE.format(", ".join(both)))
    assert problems(outcome) == []
    skipped = run(AVERAGE, ONE.format(""), ways=[Way.REAL_TIME])
    assert "the score is final" in skipped.ways[0].skipped


SESSIONS = """session = F.session_window("event_time", "5 seconds").alias("window")
    return events.drop("window").groupBy(session, "user_id").agg(F.count("*").alias("score"))"""


def session_case(name: str, second: str, expect: str = "", user: str = "a") -> str:
    """Two events, and two at the time `second`."""
    later = f'at("{second}", user_id="{user}").repeat(2)'
    return f'Case("{name}", events=at("12:00:00", user_id="a").repeat(2).then({later}), expect=[{expect}])'


def test_a_session_ends_with_its_gap_in_all_ways_that_a_stream_takes(run: Run) -> None:
    one = 'email(user_id="a", window="12:00:00", score=4)'
    night = 'at("2026-01-05 23:59:57", user_id="a").repeat(4, every="3 seconds")'
    outcome = run(
        SESSIONS,
        session_case("a millisecond less than the gap", "12:00:04.999", one),
        session_case("the gap", "12:00:05", one),
        session_case("a millisecond more than the gap", "12:00:05.001"),
        session_case("two entities", "12:00:01", user="b"),
        f'Case("over midnight", events={night}, expect=[email(user_id="a", window="2026-01-05 23:59:57", score=4)])',
    )
    assert problems(outcome) == []
    streams = [one.way for one in outcome.ways if not one.skipped]
    assert streams == [Way.ONE_BATCH, Way.EACH_EVENT, Way.SHUFFLED, Way.RESTARTED]
    assert [one.way for one in outcome.ways if "a session may cross midnight" in one.skipped] == [Way.BATCH]
    assert "it has closed" in run(SESSIONS, session_case("gap", "12:00:05", one), ways=[Way.REAL_TIME]).ways[0].skipped


def test_single_events_and_raw_lines(run: Run) -> None:
    body = 'return events.where("action = \'x\'").withColumn("score", F.length("ip_address"))'
    raw = "user_id: b | timestamp: 2026-01-05T12:00:07Z | ip_address: 12345 | action: x"
    events = f'at("12:00:00", user_id="a", ip_address="1234", action="x").then(line("{raw}")).then(after="1 second")'
    events = events.replace('.then(after="1 second")', '.then(at("12:00:08", user_id="c", ip_address="1", action="x"))')
    expected = 'email(user_id="a", window="12:00:00", score=4), email(user_id="b", score=5)'
    assert problems(run(body, f'Case("c", events={events}, expect=[{expected}])', ways=QUICK, window="None")) == []


def test_a_detector_whose_stream_is_not_its_batch_is_found_out(run: Run) -> None:
    """A rising score by declaration only: what a stream has written is not taken back."""
    body = AVERAGE.replace("< 100", "< 10")
    events = 'at("12:00:00", user_id="a", ip_address="1234").then(after="1 second", ip_address="x" * 60)'
    outcome = run(body, f'Case("c", events={events}, expect=[])', more='score="rising", ',
                  ways=[Way.BATCH, Way.ONE_BATCH, Way.EACH_EVENT])  # fmt: skip
    assert problems(outcome) == [
        ("c", ["each-event"], "", "email  user_id=a  12:00:00 to 12:00:10  score 4"),
        ("c", ["each-event"], "nothing for user_id=a 12:00:00 to 12:00:10 (as in batch)",
         "email  user_id=a  12:00:00 to 12:00:10  score 4"),
    ]  # fmt: skip


def test_a_case_without_the_finding_that_it_expects_says_the_highest_score(run: Run) -> None:
    few = 'Case("few", events=at("12:00:00", user_id="a", action="x").repeat(2), expect=[email(user_id="a")])'
    none = 'Case("none", events=at("12:00:00", user_id="a", action="y"), expect=[email(user_id="a")])'
    found = problems(run(COUNT.replace("events", "events.where(\"action = 'x'\")"), few, none, ways=QUICK))
    assert found == [
        ("few", ["batch", "shuffled"], "email  user_id=a",
         "nothing; the highest score is 2, user_id=a  12:00:00 to 12:00:10"),
        ("none", ["batch", "shuffled"], "email  user_id=a", "nothing; no window or event has a score"),
    ]  # fmt: skip


def test_an_event_that_makes_the_detector_raise_is_named(run: Run) -> None:
    body = """checked = F.when(F.col("user_id") == "bad", F.raise_error(F.lit("no such user"))).otherwise(F.lit(1))
    return events.withColumn("n", checked).groupBy("window", "user_id").agg(F.sum(F.abs("n")).alias("score"))"""
    good = 'Case("good", events=at("12:00:00", user_id="a"), expect=[])'
    then = '.then(after="1 second", user_id="bad")'
    bad = f'Case("bad", events=at("12:00:00", user_id="a").repeat(5)\n    {then}, expect=[])'
    outcome = run(body, good, bad, levels="email=3", ways=[Way.BATCH, Way.ONE_BATCH])
    failed: list[CaseOutcome] = outcome.failed
    assert [case.name for case in failed] == ["bad"]
    assert "no such user" in failed[0].problems[0].why
    assert failed[0].problems[0].why.endswith(f"an event of line {failed[0].line + 1} alone does it")


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([ONE.format("").replace('ip_address="1234"', 'ip_adress="1"')], "ip_adress: is no column of source 'logins'"),
        ([ONE.format("").replace(', ip_address="1234"', "")], "ip_address: is missing: the detector reads it"),
        ([ONE.format('email(user_id="a", window="12:30:00")')], "no event in the window 12:30:00"),
        ([ONE.format("").replace("at(", 'line("x").then(at(').replace('"12 seconds")', '"12 seconds"))')],
         "the line would go to quarantine (not_key_value): x"),
        ([ONE.format("").replace("12:00:00", "25:00")], "'25:00' is no time"),
        ([ONE.format(""), ONE.format("")], "there are 2 cases with the name 'one'"),
        ([], "CASES: has no cases"),
        (["1"], "CASES: must be a list of Case(...)"),
        ([ONE.format("").replace("expect=[]", "expect=None")], "expect: must be a list of email(...) and urgent(...)"),
        ([ONE.format('{"level": "email"}')], "expect: must be a list of email(...) and urgent(...)"),
        ([ONE.format("").replace("expect=", "tables={'t': at('12:00')}, expect=")], "t: is no table that made joins"),
        ([ONE.format("").replace("events=", "event=")], "cannot be imported: TypeError"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_cases_is_told_before_they_run(run: Run, cases: list[str], expected: str) -> None:
    assert any(expected in told for told in faults(run, AVERAGE, *cases))


def counted_cases(chance: random.Random, number: int) -> Case:
    """A random timeline, and the findings that its counts by window and user make with limits of 3 and 6."""
    begin, counts = datetime(2026, 1, 5, 12, tzinfo=UTC), Counter[tuple[datetime, str]]()
    timeline = at("12:00:00", user_id="nobody", action="login succeeded")
    for _ in range(chance.randrange(40)):
        moment = begin + timedelta(milliseconds=chance.randrange(35_000))
        user, action = chance.choice("ab"), chance.choice(["login failed", "login failed", "login succeeded"])
        timeline = timeline.then(at(moment.isoformat(), user_id=user, action=action))
        if action == "login failed":
            counts[begin + (moment - begin) // timedelta(seconds=10) * timedelta(seconds=10), user] += 1
    expect = [
        (urgent if count > 6 else email)(user_id=user, window=start.isoformat(), score=count)
        for (start, user), count in counts.items() if count > 3
    ]  # fmt: skip
    return Case(f"timeline {number}", events=timeline, expect=expect)


@pytest.mark.long
def test_random_timelines_agree_in_all_ways(spark: SparkSession, project: Path) -> None:
    body = (
        'return events.where("action = \'login failed\'").groupBy("window", "user_id").agg(F.count("*").alias("score"))'
    )
    text = HEAD.format(body=body, cases=ONE.format(""), window='"10 seconds"', levels="email=3, urgent=6", more="")
    (project / "detectors" / "made.py").write_text(text.replace('"1234"', '"1234", action="x"'))
    made = CaseRun(spark, read_catalog(project), "made", project / "run")
    chance = random.Random(20260105)
    made.cases = prepare(spark, [counted_cases(chance, number) for number in range(200)], made.query)
    outcome = made.run(STREAMS, no_broker)
    assert problems(outcome) == []
    assert sum(len(case.found) for case in outcome.cases) > 200


NIGHT = """hour = F.hour(F.from_utc_timestamp("event_time", "Europe/Berlin"))
    return events.where(hour < 6).groupBy("window", "user_id").agg(F.count("*").alias("score"))"""


@pytest.mark.long
def test_cases_are_judged_at_the_dates_that_they_name(run: Run) -> None:
    four = 'at("{} 04:30:00", user_id="a").repeat(4, every="1 minute")'
    outcome = run(
        NIGHT,
        f'Case("5:30 in winter", events={four.format("2026-01-05")}, '
        'expect=[email(user_id="a", window="2026-01-05 04:00:00", score=4)])',
        f'Case("6:30 in summer is day", events={four.format("2026-07-06")}, expect=[])',
        f'Case("the first day of summer time", events={four.format("2026-03-29")}, expect=[])',
        f'Case("the day before", events={four.format("2026-03-28")}, expect=[email(user_id="a", score=4)])',
        ways=[Way.BATCH, Way.ONE_BATCH, Way.SHUFFLED],
        window='"1 hour"',
    )
    assert problems(outcome) == []
    assert [one.way for one in outcome.ways] == [Way.BATCH, Way.ONE_BATCH, Way.SHUFFLED]
    written = [case.name for case in outcome.cases if not case.is_generated]
    assert written == ["5:30 in winter", "6:30 in summer is day", "the first day of summer time", "the day before"]
    assert len(outcome.cases) == 8, "and those at the limit"
