"""`evaluate` and `parity` of the current day: its events lie in Kafka, the days before in history.

What they must say is counted from the bursts.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.rig.broker import Broker
from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.spark.conftest import sharing
from tests.spark.sealing import login
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.database import Database
from tocsin.declare.catalog import read_catalog
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.model.source import tick_value
from tocsin.declare.settings import Settings, load_settings
from tocsin.history.places import begin
from tocsin.platform.code_versions import keep_version
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_topics

TODAY = datetime.now(UTC).date()
YESTERDAY = TODAY - timedelta(days=1)
LATENESS = 10
DETECTOR = {"evaluate": ["failed_logins"], "parity": ["--detector", "failed_logins"]}
TICK = 110
# User, failed logins, the second of the day, and how late they came: the last closed window is that of 90 to 100.
BURSTS = [
    ("first", 60, 1, 0),
    ("limit", 50, 1, 0),
    ("edge", 55, 95, 0),
    ("edge", 7, 95, 600),
    ("open", 80, 100, 0),
]
BEFORE = [("first", 70, 86_000, 0)]
OFFSETS = itertools.count()


def events(bursts: list[tuple[str, int, int, int]], day: Any) -> Iterator[dict[str, Any]]:
    for user, count, second, late in bursts:
        at = begin(day) + timedelta(seconds=second)
        for _ in range(count):
            came = at + timedelta(seconds=late)
            yield login(next(OFFSETS), second, day=day, user_id=user) | {"ingested_at": came}


def truth(limit: int) -> dict[str, int]:
    """User to score of the findings of today's closed windows."""
    counts = Counter[str]()
    for user, count, second, _ in BURSTS:
        if second - second % 10 + 10 <= TICK - LATENESS:
            counts[user] += count
    return {user: count for user, count in counts.items() if count > limit}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, broker: Broker) -> Iterator[Settings]:
    project = tmp_path_factory.mktemp("project")
    copy_project(project)
    with sharing(spark), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_PROJECT", str(project))
        patch.setenv("TOCSIN_STATE", str(project / "state"))
        patch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", broker.kafka.bootstrap_servers)
        patch.setenv("TOCSIN_KAFKA__TOPIC_PREFIX", "today.")
        made = load_settings()
        ensure_topics(made, read_catalog(project))
        seal_day(made, YESTERDAY, events(BEFORE, YESTERDAY))
        with RecordWriter(made, 4_000_000) as writer:
            for number, event in enumerate([*events(BURSTS, TODAY), *events(BEFORE, YESTERDAY)]):
                value = json.dumps(event, default=lambda moment: moment.isoformat().replace("+00:00", "Z")).encode()
                for _ in range(1 + number % 2):  # what a crash made an ingest write again
                    writer.write(made.names.events("logins"), value, partition=number % 2)
            writer.write(made.names.events("logins"), tick_value(begin(TODAY) + timedelta(seconds=TICK)), partition=0)
        yield made


def asked(verb: str, *words: str) -> tuple[int, Any]:
    result = invoke([verb, *DETECTOR[verb], *words, "--json"])
    assert result.exit_code in (0, 1), f"{result.output}{result.exception!r}"
    assert result.stdout, f"{result.output}{result.exception!r}"
    return result.exit_code, json.loads(result.stdout)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_an_evaluation_counts_the_closed_windows_of_today(settings: Settings) -> None:
    code, found = asked("evaluate", "--today", "--days", "1")
    assert code == 0
    assert [(one["day"], one["findings"]) for one in found["days"]] == [(str(YESTERDAY), 1), (str(TODAY), 2)]
    assert found["days"][1]["events"] == sum(count for _, count, _, _ in BURSTS), "each once, and no other day's"
    assert moment(found["open"]["until"]) == begin(TODAY) + timedelta(seconds=TICK - LATENESS)
    assert moment(found["open"]["since"]) == begin(TODAY)
    tops = {one["entity"]["user_id"]: one["highest_score"] for one in found["top"]}
    assert tops == truth(50) | {"first": 70}
    assert not any((settings.state / "checkpoints").rglob("*.parquet")), "nothing is left"


def test_a_draft_is_the_version_after_also_today(settings: Settings) -> None:
    draft = settings.project / "draft.py"
    text = (settings.project / "detectors" / "failed_logins.py").read_text()
    draft.write_text(text.replace("email=50, urgent=100", "email=61, urgent=69"))
    code, found = asked(
        "evaluate", "--against", str(draft), "--from", str(YESTERDAY - timedelta(days=1)), "--to", str(TODAY)
    )
    assert code == 1
    counts = [{name: value for name, value in one.items() if value} for one in found["by_day"]]
    assert counts == [{"day": str(YESTERDAY), "other_level": 1}, {"day": str(TODAY), "same": 1, "gone": 1}]
    gone = [one for one in found["changes"] if one["after"] is None]
    assert [(one["entity"], one["before"]) for one in gone] == [({"user_id": "first"}, "email 60")]
    (lost,) = found["left_out"].items()
    assert lost[0] == str(YESTERDAY - timedelta(days=1))
    assert "is not published" in lost[1]
    words = invoke(["evaluate", "failed_logins", "--against", str(draft), "--today"]).output
    assert f"{TODAY}: from Kafka, up to {begin(TODAY) + timedelta(seconds=100):%Y-%m-%d %H:%M:%S}Z" in words
    assert "2 days: 1 alike, 1 gone, 0 new, 1 with another level, 0 with another score alone" in words


def streamed(settings: Settings, *scores: tuple[str, int, int]) -> None:
    """Store what the stream is to have found: user, score, second at which the window begins."""
    spec = read_spec(settings.project / "detectors" / "failed_logins.py")
    keep_version(settings, "detector:failed_logins", spec.version, spec.path.read_bytes(), "0123456789abcdef")
    made = []
    for user, score, second in scores:
        start = begin(TODAY) + timedelta(seconds=second)
        end = start + timedelta(seconds=10)
        identity = finding_id(spec.name, {"user_id": user}, start, end)
        made.append(
            Finding(
                finding_id=identity, detector=spec.name, version=spec.version, entity={"user_id": user},
                window_start=start, window_end=end, level="email", score=score, limit=50, detected_at=end,
            )
        )  # fmt: skip
    database = Database(settings.alerts_database)
    database.migrate()
    with database.write() as connection:
        record(connection, made, Rules(facts={}), begin(TODAY))
    database.close()


def test_parity_of_today_proves_what_came_late(settings: Settings) -> None:
    streamed(settings, ("first", 60, 0), ("edge", 55, 90), ("open", 80, 100), ("nobody", 51, 0))
    code, found = asked("parity", "--today")
    told = {one["entity"]["user_id"]: one["reason"] for one in found["differences"]}
    assert told == {"edge": "late", "nobody": "unexplained"}
    assert (code, found["same"], found["stream"], found["batch"]) == (1, 1, 3, len(truth(50)))
    assert moment(found["open"]["until"]) == begin(TODAY) + timedelta(seconds=TICK - LATENESS)
    assert not (settings.state / "parity").exists(), "no report of a part of a day is kept"


def test_without_kafka_the_current_day_is_refused_and_the_others_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setattr("tocsin.history.spark.landing._TIMEOUT_SECONDS", 0.1)
    refused = invoke(["evaluate", "failed_logins", "--today"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "127.0.0.1:9" in str(refused.exception)
    assert asked("evaluate")[0] == 0
