"""How alerts are compared with what is known of incidents: the scores, the labels, and how well they agree."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.rig.samples.backfills import SPEC
from tests.unit.alerts.scene import NOON, RULES, finding
from tocsin import lab
from tocsin.alerts import actions
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.evaluation import evaluation_run
from tocsin.alerts.evaluation.evaluation_run import (
    beside,
    draw_evaluation,
    highest_scores,
    read_incidents,
    read_verdicts,
)
from tocsin.alerts.evaluation.scoring import Label, Labels, ScoredWindow, choose_limit, evaluate, ladder_of
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database
from tocsin.declare.model.detector import DetectorSpec, Levels
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings

END = NOON + timedelta(seconds=10)


def table(*scores: float) -> pa.Table:
    names = {"user_id": [f"u{n}" for n in range(len(scores))], "window_start": [NOON] * len(scores)}
    return pa.table(names | {"window_end": [END] * len(scores), "score": list(scores)})


@pytest.mark.parametrize(
    ("limit", "others", "expected"),
    [(50, (), [5, 9, 60]), (5, (), [5, 9, 60]), (4, (), [4, 5, 9, 60]), (50, (7, 3), [4, 5, 9, 60])],
)
def test_the_highest_scores_are_taken_and_all_findings(
    monkeypatch: pytest.MonkeyPatch, limit: float, others: tuple[float, ...], expected: list[float]
) -> None:
    monkeypatch.setattr(evaluation_run, "MOST_SCORES", 3)
    found = highest_scores(table(1, 9, 60, 4, 5), replace(SPEC, levels=Levels(email=limit)), others)
    assert sorted(window.score for window in found) == expected
    assert {(window.key, window.start, window.end) for window in found} >= {('{"user_id":"u2"}', NOON, END)}


@pytest.mark.parametrize("scores", [(7.0,), (0.0, 0.0), (-3.0, -1.0), (0.001, 1e9)])
def test_any_scores_fit_into_the_picture(scores: tuple[float, ...]) -> None:
    windows = highest_scores(table(*scores), SPEC)
    known = Labels([Label(windows[0].key, NOON, END)], is_complete=True)
    ladder = evaluate(windows, known, [-5, 0, 50], SPEC.dedup_period, 1)
    assert draw_evaluation(windows, {"email": 50}, ladder).getcolors(1_000_000)
    assert draw_evaluation(windows, {}, evaluate(windows, Labels(), [0], SPEC.dedup_period, 1)).size == (900, 860)


def test_incidents_outside_of_the_days_do_not_count_as_missed_in_the_workbench(tmp_path: Path) -> None:
    early = NOON - timedelta(days=5)
    lines = [f"u0,{time.isoformat()},{(time + timedelta(hours=1)).isoformat()}" for time in (early, NOON)]
    (tmp_path / "incidents.csv").write_text("\n".join(["entity,from,to", *lines]))
    found = lab.Scores(SPEC, table(60), [NOON.date()], {}).limits(tmp_path / "incidents.csv")
    assert [*found["recall"]][:1] == [1.0]


# --- labels -----------------------------------------------------------------------------------------------------------


ANN, PAIRED = '{"user_id":"ann"}', '{"host":"web","user_id":"ann"}'
PAIR = replace(SPEC, entity=("user_id", "host"))
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
TIMES = "2026-11-21T12:00:00Z,2026-11-21T13:00:00Z"


@pytest.mark.parametrize(
    ("spec", "text", "key"),
    [
        (SPEC, f"entity,from,to\nann,{TIMES}\n", ANN),
        (SPEC, f"\ufeffuser_id,note,from,to\nann,x,{TIMES}", ANN),
        (SPEC, "entity,from,to\nann,2026-11-21 12:00,2026-11-21T14:00+01:00\n", ANN),
        (PAIR, f'from,to,entity\n{TIMES},"{{""host"": ""web"", ""user_id"": ""ann""}}"\n', PAIRED),
        (PAIR, f"host,user_id,from,to\nweb,ann,{TIMES}\n", PAIRED),
        (replace(PAIR, dedup=("user_id",)), f"entity,from,to\nann,{TIMES}\n", ANN),
    ],
    ids=["entity", "its column, with a mark of Excel", "times with and without a zone", "JSON", "columns", "dedup"],
)  # fmt: skip
def test_a_line_says_who_and_when(tmp_path: Path, spec: DetectorSpec, text: str, key: str) -> None:
    path = tmp_path / "incidents.csv"
    path.write_text(text, encoding="utf-8")
    assert read_incidents(path, spec) == [Label(key, START, START + timedelta(hours=1))]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "must name the columns entity (or user_id), from and to, not nothing"),
        (f"who,from,to\nann,{TIMES}\n", 1, "must name the columns entity (or user_id), from and to, not who, from, to"),
        ("entity,from\nann,2026-11-21", 1, "not entity, from"),
        ("entity,from,to\n", None, "holds no incident"),
        ("entity,from,to\nann,noon,2026-11-21T13:00:00Z\n", 2, "from: 'noon' is no time; write 2026-01-31T14:05:00Z"),
        ("entity,from,to\nann,2026-11-21T13:00:00Z,2026-11-21T12:00:00Z\n", 2, "is not before to: 2026-11-21T12"),
        ("entity,from,to\nann,2026-11-21\n", 2, "has other columns than the first line names"),
        (f"entity,from,to\nann,{TIMES},more\n", 2, "has other columns than the first line names"),
        (f"entity,from,to\n,{TIMES}\n", 2, "does not say which user_id"),
        (f'entity,from,to\n"{{""id"": 1}}",{TIMES}\n', 2, "does not say which user_id"),
        (f"entity,from,to\n{{broken,{TIMES}\n", 2, "does not say which user_id"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_line(tmp_path: Path, text: str, line: int | None, said: str) -> None:
    path = tmp_path / "incidents.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_incidents(path, SPEC)
    (fault,) = caught.value.faults
    assert (fault.where, fault.line) == (str(path), line)
    assert said in fault.what


def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"entity,from,to\n\xff\xfe")
    for name in ("binary.csv", "missing.csv"):
        with pytest.raises(ConfigError, match=rf"{name}: cannot be read as CSV in UTF-8"):
            read_incidents(tmp_path / name, SPEC)


def test_verdicts_say_what_was_an_incident_and_what_was_none(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    assert read_verdicts(settings, SPEC) == [], "there is no alerts DB yet"
    database = Database(settings.alerts_database)
    database.migrate()
    with database.write() as connection:
        record(connection, [finding(user=user) for user in ("ann", "bob", "cid", "dan")], RULES, NOON)
        for alert, verdict in enumerate((Verdict.TRUE, Verdict.FALSE, Verdict.EXPECTED), 1):
            actions.resolve(connection, [alert], actions.Actor("me", NOON), verdict)
    database.close()
    end = NOON + timedelta(seconds=10)
    assert sorted(read_verdicts(settings, SPEC)) == [
        Label(ANN, NOON, end),
        Label('{"user_id":"bob"}', NOON, end, is_real=False),
        Label('{"user_id":"cid"}', NOON, end, is_real=False),
    ]


def test_a_verdict_about_an_incident_of_the_file_counts_once() -> None:
    hour = timedelta(hours=1)
    incident, other = Label(ANN, START, START + hour), Label("bob", START, START + hour)
    apart, false = Label(ANN, START + hour, START + 2 * hour), incident._replace(is_real=False)
    late = Label(ANN, START + hour / 2, START + 2 * hour)
    assert beside([incident], [incident, late, other, apart, false]) == [other, apart, false]


# --- scoring ----------------------------------------------------------------------------------------------------------


BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, PERIOD = timedelta(minutes=1), timedelta(minutes=30)


def windows(text: str, length: int = 10) -> list[ScoredWindow]:
    """`ann 0 7` is a window of ann, ten minutes long, that begins at minute 0 of the hour and scores 7."""
    found = []
    for words in map(str.split, filter(None, text.split(","))):
        start = BEGIN + int(words[1]) * MINUTE
        found.append(ScoredWindow(words[0], start, start + length * MINUTE, float(words[2])))
    return found


def labels(text: str) -> list[Label]:
    """`ann 5-15` is an incident of ann, and with `none` behind it a false alarm."""
    found = []
    for who, span, *none in map(str.split, filter(None, text.split(","))):
        start, end = (BEGIN + int(minute) * MINUTE for minute in span.split("-"))
        found.append(Label(who, start, end, is_real=not none))
    return found


@pytest.mark.parametrize(
    ("scores", "known", "alerts_right_found", "delay"),
    [
        pytest.param("ann 0 7", "ann 0-10", (1, 1, 1), 10, id="a window of the incident: known when it has ended"),
        pytest.param("ann 0 5", "ann 0-10", (0, 0, 0), None, id="a score at the limit is not above it"),
        pytest.param("bob 0 7", "ann 0-10", (1, 0, 0), None, id="somebody else"),
        pytest.param("ann 0 7", "ann 9-20", (1, 1, 1), 1, id="they overlap by a minute"),
        pytest.param("ann 0 7", "ann 10-20", (1, 0, 0), None, id="the window ends where the incident begins"),
        pytest.param("ann 10 7", "ann 0-10", (1, 0, 0), None, id="the window begins where the incident ends"),
        pytest.param("ann 0 7, ann 29 7", "ann 0-10", (1, 1, 1), 10, id="one period, one alert"),
        pytest.param("ann 0 7, ann 30 7", "ann 0-10", (2, 1, 1), 10, id="a period later another alert, a wrong one"),
        pytest.param("ann 0 7, ann 10 7", "ann 15-20", (1, 1, 1), 5, id="a later window of the alert finds it"),
        pytest.param("ann 20 7, ann 0 7", "ann 0-40", (1, 1, 1), 10, id="the order of the scores is of no account"),
        pytest.param("ann 0 7, ann 40 7", "ann 0-60", (2, 2, 1), 10, id="two right alerts, one incident, its firs"),
        pytest.param("ann 0 7", "ann 0-5, ann 6-9, bob 0-9", (1, 1, 2), 7, id="two incidents of one window"),
        pytest.param("ann 0 7", "ann 0-10, ann 0-10", (1, 1, 1), 10, id="an incident named twice is one"),
    ],
)  # fmt: skip
def test_alerts_are_right_where_they_overlap_an_incident(
    scores: str, known: str, alerts_right_found: tuple[int, int, int], delay: int | None
) -> None:
    alerts, right, found = alerts_right_found
    (one,) = evaluate(windows(scores), Labels(labels(known), is_complete=True), [5], PERIOD, 2)
    there = len(set(labels(known)))
    assert (one.alerts, one.right, one.wrong, one.found) == (alerts, right, alerts - right, found)
    assert one.delay_seconds == (None if delay is None else delay * 60)
    assert one.precision == (right / alerts if alerts else None)
    assert (one.recall, one.alerts_a_day) == (found / there, alerts / 2)


def test_an_event_without_a_window_lies_in_an_incident_from_its_start_on_and_before_its_end() -> None:
    (one,) = evaluate(
        windows("ann 0 7, bob 10 7, cid 5 7", length=0),
        Labels(labels("ann 0-10, bob 0-10, cid 0-10"), is_complete=True), [5], PERIOD, 1,
    )  # fmt: skip
    assert (one.right, one.wrong, one.delay_seconds) == (2, 1, 150)


def test_of_verdicts_alone_only_alerts_count_that_somebody_judged() -> None:
    known = Labels(labels("ann 0-10, bob 0-10 none, cid 0-10, cid 0-10 none"))
    (one,) = evaluate(windows("ann 0 7, bob 0 7, cid 0 7, dan 0 7"), known, [5], PERIOD, 1)
    assert (one.alerts, one.right, one.wrong, one.precision) == (4, 2, 1, 2 / 3)
    (none,) = evaluate(windows("dan 0 7"), Labels(), [5], PERIOD, 1)
    assert (none.precision, none.recall, none.delay_seconds) == (None, None, None)


def test_the_chosen_limit_is_the_lowest_that_leaves_few_enough_alerts() -> None:
    scores = windows("ann 0 1, ann 10 9, ann 40 4, bob 0 3, cid 0 2, dan 0 2")
    counts = [one.alerts for one in evaluate(scores, Labels(), [0, 1, 2, 3, 4, 9], PERIOD, 1)]
    assert counts == [5, 5, 3, 2, 1, 0]
    assert [choose_limit(scores, PERIOD, most) for most in (0, 1, 2.5, 3, 4, 5, 99)] == [9, 4, 3, 2, 2, 1, 1]
    assert choose_limit([], PERIOD, 1) is None


def test_a_ladder_has_the_declared_limits_and_leaves_more_and_more_scores() -> None:
    scores = [float(number) for number in range(100)]
    ladder = ladder_of(scores, [50.5])
    assert [sum(score > limit for score in scores) for limit in ladder] == [64, 49, 32, 16, 8, 4, 2, 1]
    assert ladder_of([3.0, 3.0], [1]) == [1]
    assert ladder_of([], [1, 2]) == [1, 2]
