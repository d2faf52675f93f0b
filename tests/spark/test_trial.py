"""`tocsin evaluate`, also against another version, over days with planted bursts, and a detector of the stream alone.

What they must say is counted from the bursts.
"""

import hashlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.spark.conftest import sharing
from tests.spark.sealing import login
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, End
from tocsin.history.backfill.spark import day_findings
from tocsin.history.places import begin

DAYS = [datetime.now(UTC).date() - timedelta(days=back) for back in (4, 3, 2)]
# User, failed logins, and the second of the day at which they all are.
BURSTS: list[list[tuple[str, int, int]]] = [
    [("limit", 50, 0), ("low", 51, 100), ("worst", 101, 60), ("split", 30, 205), ("split", 30, 211)],
    [("often", 70, 0), ("often", 70, 600), ("often", 70, 1200), ("often", 90, 7200)],
    [("limit", 50, 0)],
]
AGAINST = ["evaluate", "failed_logins", "--against"]
SUCCESSES = 20
SESSIONS = """\
    session = F.session_window("event_time", "5 minutes").alias("window")
    return failures.drop("window").groupBy(session, "user_id").agg("""

# Finds the first event of a day by a user who was there on a day before.
AGAIN = '''"""Users who come again on a later day."""
from dataclasses import dataclass
from datetime import datetime
from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Seen:
    last: datetime | None = None


@detector(source="logins", entity="user_id", window=None, forget_after="3 days", levels=Levels(email=0),
          owner="a@example.com", runbook="https://example.com", stage="live")
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    if key == "worst" and state.last == event.event_time:
        raise ValueError(key)
    days = 0 if state.last is None else (event.event_time.date() - state.last.date()).days
    return Seen(event.event_time), [StepFinding(days)] if days else []
'''


@dataclass
class Told:
    """What a command said, and the files of the state folder that it made, changed or removed."""

    code: int
    out: str
    err: str
    changed: list[str]


def events(number: int) -> Iterator[dict[str, Any]]:
    """Those of the day `number`."""
    offsets = itertools.count(number * 10_000)
    for user, count, second in BURSTS[number]:
        yield from (login(next(offsets), second, day=DAYS[number], user_id=user) for _ in range(count))
    yield from (
        login(next(offsets), 60, day=DAYS[number], user_id="worst", action="login ok") for _ in range(SUCCESSES)
    )


def truth(limit: int, seconds: int = 10) -> dict[tuple[date, int, str], int]:
    """The findings of all days: day, second at which the window begins, and user, to score."""
    counts: Counter[tuple[date, int, str]] = Counter()
    for day, bursts in zip(DAYS, BURSTS, strict=True):
        for user, count, second in bursts:
            counts[day, second - second % seconds, user] += count
    return {key: count for key, count in counts.items() if count > limit}


def change(key: tuple[date, int, str], seconds: int, before: str | None, after: str | None) -> dict[str, Any]:
    day, second, user = key
    start = begin(day) + timedelta(seconds=second)
    ends = {"window_start": start, "window_end": start + timedelta(seconds=seconds)}
    moments = {name: moment.strftime("%Y-%m-%dT%H:%M:%SZ") for name, moment in ends.items()}
    return {"entity": {"user_id": user}, **moments, "before": before, "after": after}


def said(score: int, urgent: int = 100) -> str:
    return f"{'urgent' if score > urgent else 'email'} {score}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our declarations; in `drafts`, versions of the detector; among the detectors, one with a session window."""
    folder = tmp_path_factory.mktemp("project")
    copy_project(folder, "sources", "detectors", "expectations")
    text = (folder / "detectors" / "failed_logins.py").read_text()
    (folder / "drafts").mkdir()
    (folder / "drafts" / "limits.py").write_text(text.replace("email=50, urgent=100", "email=60, urgent=80"))
    (folder / "drafts" / "window.py").write_text(text.replace('"10 seconds"', '"20 seconds"'))
    sessions = text.replace('    return failures.groupBy("window", "user_id").agg(', SESSIONS)
    assert sessions != text
    (folder / "detectors" / "sessions.py").write_text(sessions)
    (folder / "detectors" / "again.py").write_text(AGAIN)
    fails = text.replace('F.count("*")', 'F.udf(lambda count: count // 0, "long")(F.count("*"))')
    (folder / "detectors" / "fails.py").write_text(fails.replace('source="logins"', 'source="logins", score="final"'))
    return folder


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = Settings(state=tmp_path_factory.mktemp("state"))
    for number, day in enumerate(DAYS):
        seal_day(settings, day, events(number))
    return settings


@pytest.fixture(scope="module")
def told(spark: SparkSession, history: Settings, project: Path) -> dict[str, Told]:
    """What each command said, one after the other."""
    both = ["--detector", "failed_logins", "--detector", "sessions"]
    commands = {
        "evaluate": ["evaluate", "failed_logins", "--json"],
        "two days": ["evaluate", "failed_logins", "--days", "2"],
        "limits": [*AGAINST, str(project / "drafts" / "limits.py")],
        "window": [*AGAINST, str(project / "drafts" / "window.py"), "--json"],
        "again": ["evaluate", "again", "--json", "--days", "1"],
        "sessions": ["evaluate", "sessions"],
        "fails": ["evaluate", "fails", "--days", "1"],
        "labels": [*labelled(project), "--alerts-a-day", "0.4", "--out", str(project / "limits.png"), "--json"],
        "labels in words": [*labelled(project), "--limits", "0.30000000000000004,60"],
        "scores": ["evaluate", "failed_logins", "--scores", str(project / "scores.parquet")],
        "scores of step": ["evaluate", "again", "--days", "1", "--scores", str(project / "again.parquet")],
        "nowhere": ["evaluate", "failed_logins", "--scores", str(project / "nowhere" / "scores.parquet")],
        "backfill": ["backfill", *both, "--yes"],
        "plan": ["backfill", *both, "--plan"],
    }
    tell_count = SimpleNamespace(warning=lambda what, **own: print(f"{what}: {own['count']}", file=sys.stderr))
    with sharing(spark), pytest.MonkeyPatch.context() as patch:
        patch.setattr(day_findings, "log", tell_count)
        patch.setenv("TOCSIN_PROJECT", str(project))
        patch.setenv("TOCSIN_STATE", str(history.state))
        return {name: tell(history.state, words) for name, words in commands.items()}


def labelled(project: Path) -> list[str]:
    """Write three incidents: one that the limits find, one about somebody who never failed, and one of another year."""
    hour = f"{DAYS[0]}T00:00:00Z,{DAYS[0]}T01:00:00Z"
    rows = ["entity,from,to", f"worst,{hour}", f"nobody,{hour}", "worst,2020-01-01,2020-01-02"]
    (project / "incidents.csv").write_text("\n".join(rows))
    return ["evaluate", "failed_logins", "--labels", str(project / "incidents.csv")]


def tell(state: Path, words: list[str]) -> Told:
    before = files(state)
    result = invoke(words)
    after = files(state)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    error = "" if isinstance(result.exception, SystemExit) or result.exception is None else str(result.exception)
    return Told(result.exit_code, result.stdout, result.stderr + error, changed)


def files(state: Path) -> dict[str, str]:
    """The content of each file, as a digest."""
    found = (path for path in state.rglob("*") if path.is_file())
    return {str(path.relative_to(state)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_an_evaluation_counts_findings_and_alerts_of_each_day(told: dict[str, Told]) -> None:
    assert told["evaluate"].code == 0, told["evaluate"].err
    found = json.loads(told["evaluate"].out)
    expected = truth(50)
    assert found["days"] == [
        {
            "day": str(day),
            "events": SUCCESSES + sum(count for _, count, _ in bursts),
            "findings": sum(key[0] == day for key in expected),
            "urgent": sum(key[0] == day and score > 100 for key, score in expected.items()),
            "alerts": alerts,
        }
        for day, bursts, alerts in zip(DAYS, BURSTS, (2, 2, 0), strict=True)  # `often` rings in two hours
    ]
    assert [(one["entity"], one["findings"], one["highest_score"]) for one in found["top"]] == [
        ({"user_id": "often"}, 4, 90),
        ({"user_id": "worst"}, 1, 101),
        ({"user_id": "low"}, 1, 51),
    ]
    assert found["detector"] == "failed_logins"
    assert 0 < found["cpu_seconds"] < 120
    assert 0 < found["seconds"] < 120


def test_an_evaluation_of_the_latest_days_in_words(told: dict[str, Told]) -> None:
    one = told["two days"]
    assert one.code == 0, one.err
    rows = [line.split() for line in one.out.splitlines() if line]
    assert rows[:3] == [
        ["DAY", "EVENTS", "FINDINGS", "URGENT", "ALERTS"],
        [str(DAYS[1]), "320", "4", "0", "2"],
        [str(DAYS[2]), "70", "0", "0", "0"],
    ]
    assert ["often", "4", "90"] in rows
    assert "4 findings and 2 alerts in 2 days" in one.out
    assert "390 events read in " in one.out


def test_limits_are_compared_with_labels(told: dict[str, Told], project: Path) -> None:
    assert told["labels"].code == 0, told["labels"].err
    found = json.loads(told["labels"].out)
    assert found["labels"] == {"incidents": 2, "verdicts": 0, "outside": 1, "unseen": ['{"user_id":"nobody"}']}
    assert found["scores"] == len(truth(0))
    assert found["chosen"] == 90, "one alert in three days: worst, with 101"
    by_limit = {one["limit"]: one for one in found["ladder"]}
    assert {50, 90, 100} <= by_limit.keys()
    figures = ("alerts", "right", "wrong", "found", "precision", "recall", "delay_seconds")
    assert [by_limit[50][name] for name in figures] == [4, 1, 3, 1, 0.25, 0.5, 70], "seconds 60 to 70 of the day"
    assert [by_limit[90][name] for name in figures] == [1, 1, 0, 1, 1, 0.5, 70]
    assert (project / "limits.png").read_bytes().startswith(b"\x89PNG")


def test_limits_are_compared_with_labels_in_words(told: dict[str, Told]) -> None:
    one = told["labels in words"]
    assert one.code == 0, one.err
    rows = [line.split() for line in one.out.splitlines()]
    assert rows[rows.index([]) :].count(["60", "3", "1", "33.3%", "50.0%", "70", "s"]) == 1, one.out
    assert ["0.30000000000000004"] in [row[:1] for row in rows], "0.3 is below it, and would find more"
    assert "compared with 2 incidents and 0 verdicts" in one.out
    assert "1 label left out: outside of these days" in one.err
    assert "1 of those labelled have no score on these days, so no limit finds them: nobody" in one.err


def test_every_score_is_written_below_the_limits_too(told: dict[str, Told], project: Path) -> None:
    for name in ("scores", "scores of step"):
        assert told[name].code == 0, told[name].err
    rows = parquet.read_table(project / "scores.parquet").to_pylist()
    assert {(row["window_start"], row["user_id"]): row["score"] for row in rows} == {
        (begin(day) + timedelta(seconds=second), user): score for (day, second, user), score in truth(0).items()
    }
    assert {row["window_end"] - row["window_start"] for row in rows} == {timedelta(seconds=10)}
    stepped = parquet.read_table(project / "again.parquet").to_pylist()
    assert {(row["user_id"], row["window_start"], row["window_end"], row["score"]) for row in stepped} == {
        ("limit", begin(DAYS[2]), begin(DAYS[2]), 2),
        ("worst", *[begin(DAYS[2]) + timedelta(seconds=60)] * 2, 1),
    }
    assert not list(project.glob(".*.part"))


def test_a_file_that_cannot_be_written_is_named_at_once(told: dict[str, Told]) -> None:
    assert told["nowhere"].code == 1
    assert "nowhere/scores.parquet: cannot be written" in told["nowhere"].err


def test_other_limits_are_told_finding_by_finding(told: dict[str, Told]) -> None:
    one = told["limits"]
    assert one.code == 1, one.err
    table = [line.split() for line in one.out.splitlines()[1:3]]
    assert [words[2:] for words in table] == [["low", "email", "51"], ["often", "email", "90", "urgent", "90"]]
    assert f"{DAYS[0]} 00:01:40" in one.out
    assert [str(DAYS[0]), "1", "1", "0", "0", "0"] in [line.split() for line in one.out.splitlines()]
    assert "3 days: 4 alike, 1 gone, 0 new, 1 with another level, 0 with another score alone" in one.out


def test_another_window_makes_other_findings(told: dict[str, Told]) -> None:
    one = told["window"]
    assert one.code == 1, one.err
    found = json.loads(one.out)
    new = [change(key, 20, None, said(score)) for key, score in truth(50, 20).items()]
    gone = [change(key, 10, said(score), None) for key, score in truth(50).items()]
    assert {"split", "low"} <= {one["entity"]["user_id"] for one in new}

    def order(one: dict[str, Any]) -> str:
        return json.dumps(one, sort_keys=True)

    assert sorted(found["changes"], key=order) == sorted(gone + new, key=order)
    assert (found["same"], found["days"]) == (0, 3)
    assert found["before"] != found["after"]


def test_a_session_window_is_refused_in_words(told: dict[str, Told], project: Path) -> None:
    one = told["sessions"]
    assert (one.code, one.out) == (1, "")  # CliRunner's code of an exception
    assert one.err.startswith(f"{project / 'detectors' / 'sessions.py'}: detect: has a session window")
    assert "use a window of a fixed length" in one.err


def test_a_failure_of_its_code_is_said_in_a_line(told: dict[str, Told], project: Path) -> None:
    what = "ZeroDivisionError: integer division or modulo by zero"
    assert told["fails"].err.splitlines()[-1] == f"{project / 'detectors' / 'fails.py'}: {what}"


def test_trials_keep_nothing(told: dict[str, Told]) -> None:
    kept = {name: one.changed for name, one in told.items() if name not in ("backfill", "plan")}
    assert not any(kept.values()), kept


def test_a_backfill_leaves_a_session_window_out_and_runs_the_others(told: dict[str, Told], history: Settings) -> None:
    one = told["backfill"]
    assert one.code == 1, "not all that was asked for is published"
    lost = [line for line in one.err.splitlines() if line.startswith("sessions ")]
    assert len(lost) == 1, one.err
    assert lost[0].startswith(f"sessions {DAYS[0]} to {DAYS[2]} (3 days): ")
    assert "has a session window" in lost[0]
    ours, other = (Backfills(history, name).read() for name in ("failed_logins", "sessions"))
    assert {day: day_.findings for day, day_ in ours.published.items()} == dict(zip(DAYS, (2, 4, 0), strict=True))
    assert other.published == {}
    assert {day: attempt.end for day, attempt in other.attempts.items()} == dict.fromkeys(DAYS, End.HELD)
    assert told["plan"].code == 0
    assert f"sessions {DAYS[0]} to {DAYS[2]} (3 days): held: " in told["plan"].err
    assert told["plan"].out.count("nothing to do") == 2


def test_a_day_of_a_detector_with_step_reads_the_days_before(told: dict[str, Told]) -> None:
    assert told["again"].code == 0, told["again"].err
    found = json.loads(told["again"].out)
    seen = [{user for user, _, _ in bursts} | {"worst"} for bursts in BURSTS]
    expected = {user: 1 if user in seen[1] else 2 for user in seen[2] if user in seen[0] | seen[1]}
    assert [day["day"] for day in found["days"]] == [str(DAYS[2])]
    assert {one["entity"]["user_id"]: one["highest_score"] for one in found["top"]} == expected
    assert expected == {"limit": 2, "worst": 1}
    assert told["again"].err == f"events left out by step: {SUCCESSES - 1}\n", "all but the first of `worst`"
