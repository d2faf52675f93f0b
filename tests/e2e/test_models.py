"""A detector that learns, live: each window is judged by the model of its day, as a backfill judges it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.rig.broker import Broker
from tests.rig.commands import Commands
from tests.rig.detect_job import Topic, ticking
from tests.rig.installation import Installation
from tests.rig.samples.sealed_days import seal_day
from tests.rig.waiting import await_that
from tocsin.declare.model.names import INDEXER, detector_job
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.history.backfill.parity.parity_report import ParityReport
from tocsin.history.places import begin

NAME, SECONDS, ONE = "learned", 120.0, timedelta(days=1)
TODAY = datetime.now(UTC).date()
BEGUN, NEVER = begin(TODAY), datetime.min.replace(tzinfo=UTC)
LEARNED = [TODAY - back * ONE for back in range(13, 8, -1)]
# A stream may have a backlog of eight days: older models are no longer kept for it.
DAYS = [TODAY - back * ONE for back in range(8, 0, -1)]
DETECTOR = '''"""Hours with more logins than usual. Catches: growth. Misses: the rest. Look first at: the user."""
from pyspark.sql import functions as F
from tocsin import Levels, Model, detector

@detector(source="logins", entity="user_id", window="1 hour", levels=Levels(email=2),
          model=Model(days=3, min_rows=1, max_change=1000), owner="o@example.com", runbook="r", stage="live")
def detect(events):
    return events.groupBy("window", "user_id").agg(F.count("*").alias("logins"))

def train(features):
    return float(features["logins"].median())

def score(features, model):
    return features["logins"] - model

CASES = []
'''


@pytest.fixture
def one(broker: Broker, tmp_path: Path) -> Iterator[Installation]:
    with Installation(tmp_path, broker) as installation:
        (installation.settings.project / "detectors" / f"{NAME}.py").write_text(DETECTOR)
        installation.make_topics()
        yield installation


def write(one: Installation, topic: Topic) -> int:
    """Seal all days, and write those of the stream into its topic, too; returns the number of windows to be found."""
    chance, windows = Random(7), 0
    for number, day in enumerate([*LEARNED, *DAYS]):
        rows: list[dict[str, Any]] = []
        for hour, user in ((hour, user) for hour in range(0, 24, 3) for user in ("ann", "bob")):
            # Each day there are more logins, so another model gives another score.
            for minute in range(3 + number + chance.choice((0, 0, 0, 9))):
                moment = begin(day) + timedelta(hours=hour, minutes=minute)
                if day in DAYS:
                    record = json.loads(topic.event(user, moment, moment, 0, action="login"))
                else:
                    record = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": len(rows),
                              "source": "logins", "schema_version": 1, "user_id": user, "action": "login"}  # fmt: skip
                rows.append(record | {"event_time": moment, "ingested_at": moment, "timestamp": moment})
            windows += day in DAYS
        seal_day(one.settings, day, rows)
    topic.flush()
    return windows


@pytest.mark.long
def test_a_stream_of_days_is_judged_as_their_backfill_is_while_the_model_changes_each_day(one: Installation) -> None:
    topic = Topic(one.settings)
    assert write(one, topic) == 16 * len(DAYS)
    span = ("--from", str(DAYS[0]), "--to", str(DAYS[-1]))
    job = detector_job(NAME)
    with Commands(one.environment()) as commands, ticking(topic):
        commands.run("backfill", "--detector", NAME, *span, "--yes")
        one.start(job, INDEXER)
        one.await_ready(job, INDEXER)
        await_that(lambda: (report := one.report(job)) is not None and (report.watermark or NEVER) > BEGUN, SECONDS)
        expected = counted_in_backfills(one)
        await_that(lambda: len(streamed(one)) >= expected > 20, SECONDS)
        reports = [
            ParityReport.model_validate_json(commands.run("parity", "--detector", NAME, "--day", str(day), "--json"))
            for day in DAYS
        ]
        models = {finding["context"]["model"] for finding in streamed(one)}
        assert {model[:10] for model in models} == {str(day) for day in DAYS}, "each day had its own"
        told = [(report.day, len(report.differences), report.unexplained) for report in reports]
        assert told == [(day, 0, 0) for day in DAYS]
        assert sum(report.same for report in reports) == expected
        judge(commands, span)


def streamed(one: Installation) -> list[dict[str, Any]]:
    found = one.values(one.settings.names.findings)
    return [finding for finding in found if finding["detector"] == NAME and finding["origin"] == "stream"]


def counted_in_backfills(one: Installation) -> int:
    backfills = Backfills(one.settings, NAME)
    published = backfills.read().published
    return sum(len(list(backfills.findings(day, published[day]))) for day in DAYS)


def judge(commands: Commands, span: tuple[str, ...]) -> None:
    """People call the alert with the highest score true, and all others false alarms: evaluation counts with that."""
    alerts = json.loads(commands.run("alerts", "--detector", NAME, "--json"))
    highest, *others = sorted(alerts, key=lambda alert: alert["score"], reverse=True)
    assert others
    commands.run("alerts", "resolve", str(highest["id"]), "--verdict", "true", "--by", "ann")
    commands.run("alerts", "resolve", *(str(alert["id"]) for alert in others), "--verdict", "false", "--by", "ann")
    limit = highest["score"] - 0.5
    evaluation = json.loads(commands.run("evaluate", NAME, *span, "--limits", f"2,{limit:g}", "--json"))
    assert evaluation["labels"]["verdicts"] == len(alerts)
    at = {quality["limit"]: quality for quality in evaluation["ladder"]}
    assert at[2]["recall"] == at[limit]["recall"] == 1
    assert at[2]["precision"] == pytest.approx(1 / len(alerts))
    assert at[limit]["precision"] > at[2]["precision"]
