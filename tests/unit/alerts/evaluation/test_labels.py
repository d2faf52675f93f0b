"""What is known of incidents: a file, with each fault named by its line, and the verdicts of people."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.backfills import SPEC
from tests.unit.alerts.scene import NOON, RULES, finding
from tocsin.alerts import actions
from tocsin.alerts.alert_states import Verdict
from tocsin.alerts.evaluation.evaluation_run import beside, read_incidents, read_verdicts
from tocsin.alerts.evaluation.scoring import Label
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings

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
