"""Models as of each day: trained on the days before, holding from a day on, for the stream and for backfills alike."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.rig.command_line import invoke
from tests.rig.samples.sealed_days import seal_day
from tests.spark.conftest import Feed, sharing
from tests.spark.sealing import login, project_of_batches
from tocsin.cases.case_report import Way
from tocsin.cases.spark.case_run import CaseRun
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.detect.spark.step_query import detector_function
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.history.places import begin
from tocsin.history.spark.table_versions import tables_of_days
from tocsin.job import main
from tocsin.spark.events import parse_events, prepare_events
from tocsin.spark.tables.published_table import TableFolder
from tocsin.spark.tables.spark.joined_tables import FollowedTables

pytestmark = pytest.mark.usefixtures("quick_batches")

ONE = timedelta(days=1)
TODAY = datetime.now(UTC).date()
DAYS = [TODAY - back * ONE for back in (5, 4, 3, 2)]
DETECTOR = '''"""More failures than ever. Catches: growth. Misses: the rest. Look first at: the user."""
from pyspark.sql import functions as F
from tocsin import Case, Levels, Model, at, detector, email

class Most:
    def __init__(self, count):
        self.count = count

@detector(source="logins", entity="user_id", window="1 hour", levels=Levels(email=0), model=Model(days=2, min_rows=1),
          owner="o@example.com", runbook="r", stage="shadow")
def detect(events):
    return events.groupBy("window", "user_id").agg(F.count("*").alias("logins"))

def train(features):
    return Most(features["logins"].max())

def score(features, model):
    return features["logins"] - model.count

ORDINARY = at("12:00:00", user_id="ann", action="login").repeat(3, every="1 minute")
CASES = [
    Case("four logins", train_on=ORDINARY, expect=[email(user_id="ann", window="14:00:00", score=1)],
         events=at("14:00:00", user_id="ann", action="login").repeat(4, every="1 minute")),
    Case("five are usual", train_on=[ORDINARY, ORDINARY], expect=[],
         events=at("14:00:00", user_id="ann", action="login").repeat(5, every="1 minute")),
]
'''


def logins(day: date) -> Iterator[dict[str, Any]]:
    """A user has one login more on each day."""
    for number in range(3 + DAYS.index(day)):
        yield login(DAYS.index(day) * 1000 + number, 60.0 * number, day=day, user_id="ann", action="login")


@pytest.fixture
def settings(starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return sealed(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def trained(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with sharing(spark), pytest.MonkeyPatch.context() as patch:
        settings = sealed(tmp_path_factory.mktemp("trained"), patch)
        refreshed = invoke(("table", "--refresh"))
        assert refreshed.exit_code == 0, refreshed.output[-3000:]
        yield settings


def sealed(folder: Path, patch: pytest.MonkeyPatch) -> Settings:
    settings = project_of_batches(folder, patch, {"detectors/most.py": DETECTOR})
    for day in DAYS:
        seal_day(settings, day, logins(day))
    return settings


def test_a_backfilled_day_is_judged_by_the_model_of_its_day(trained: Settings) -> None:
    folder = TableFolder(trained, read_catalog(trained.project).table("model.most"))
    published = folder.current()
    assert published is not None
    rows = pq.read_table(folder.place(published)).to_pylist()
    assert [(row["day"], row["valid_from"]) for row in rows] == [
        (str(day), begin(day)) for day in (TODAY + ONE, TODAY, TODAY - ONE)
    ]
    assert main(["backfill", "most", f"--day={DAYS[3]}"]) == 0
    backfills = Backfills(trained, "most")
    (finding,) = backfills.findings(DAYS[3], backfills.read().published[DAYS[3]])
    assert finding.score == 2, "the model of the day knows the days up to the one before yesterday"
    assert (finding.context or {})["logins"] == 6
    assert str((finding.context or {})["model"]).startswith(f"{DAYS[3]} ")


def test_stream_and_backfill_agree_where_the_model_changes(spark: SparkSession, trained: Settings, feed: Feed) -> None:
    settings, catalog = trained, read_catalog(trained.project)
    spec, source, records = catalog.detector("most"), catalog.source("logins"), list[dict[str, Any]]()
    midnight = begin(TODAY)
    for hour, count in ((-2, 8), (-1, 9), (0, 9), (1, 8), (4, 1), (4, 1), (4, 1)):  # the last ones close the others
        for number in range(count):
            at = (midnight + timedelta(hours=hour, minutes=number)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            place = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": len(records)}
            envelope = {"event_time": at, "ingested_at": at, "source": "logins", "schema_version": 1, "timestamp": at}
            records.append(place | envelope | {"user_id": "ann", "ip_address": "192.0.2.1", "action": "login"})

    def taken(rows: DataFrame) -> list[tuple[Any, ...]]:
        read = (Finding.model_validate_json(row.value) for row in rows.collect())
        return [(one.window_start, one.score, (one.context or {})["model"]) for one in read]

    streamed: list[tuple[Any, ...]] = []
    tables = FollowedTables(spark, settings, [catalog.table(spec.model_table)], spec.path)
    prepared = prepare_events(parse_events(feed.records, source), spec, source.lateness)
    found = make_findings(detector_function(spec, source)(prepared, tables), spec, Emission())
    query = found.writeStream.outputMode("append").foreachBatch(lambda one, _: streamed.extend(taken(one))).start()
    try:
        for batch in (records[:20], records[20:-3], *([record] for record in records[-3:])):
            feed.send(batch)
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.createDataFrame([(json.dumps(record).encode(),) for record in records], "value binary")
    days = [TODAY - ONE, TODAY]
    reader = EventReader(
        lambda *_: parse_events(rows, source), tables=lambda _: tables_of_days(spark, settings, spec, days)
    )
    wanted = Range(start=begin(days[0]), end=midnight + timedelta(hours=3), run_id="r")
    backfilled = sorted(taken(find_in_range(spark, reader, spec, [source], wanted)))
    assert sorted(streamed) == backfilled
    assert [score for _, score, _ in backfilled] == [3, 4, 3, 2], "each by the model of its day"


def test_models_change_in_the_middle_of_a_stream_and_the_ways_agree(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    made = CaseRun(spark, read_catalog(settings.project), "most", tmp_path / "run")
    made.run([Way.BATCH, Way.SHUFFLED, Way.RESTARTED], lambda: pytest.fail("no real-time mode"))
    assert made.outcome.faults == []
    assert {case.name: case.problems for case in made.outcome.cases} == {"four logins": [], "five are usual": []}
    assert "it runs Python" in made.query.plan.reason or "model" in made.query.plan.reason


@pytest.mark.usefixtures("starts")
def test_the_first_training_by_hand_is_accepted_as_later_ones_are(settings: Settings) -> None:
    file = settings.project / "detectors" / "most.py"
    file.write_text(DETECTOR.replace("min_rows=1", "min_rows=99"))
    refused = invoke(("model", "train", "most"))
    assert refused.exit_code == 1
    assert "rows of features, and min_rows = 99" in " ".join(refused.output.split())
    done = invoke(("model", "train", "most", "--accept"))
    assert done.exit_code == 0, done.output[-3000:]
    since = [line.partition(" from ")[2] for line in done.stdout.splitlines() if line.startswith("model ")]
    assert since == [f"{begin(day):%Y-%m-%d %H:%M:%S}Z on" for day in (TODAY - ONE, TODAY, TODAY + ONE)]
    again = invoke(("model", "train", "most", "--accept"))
    assert again.stdout.count("judges windows that begin from") == 1, again.output[-3000:]
