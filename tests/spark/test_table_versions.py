"""Tables that are made of history: a version a day, of the days before it, for the stream and for backfills alike."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.rig.command_line import invoke
from tests.rig.samples.sealed_days import seal_day
from tests.spark.sealing import ROOT, login, project_of_batches
from tocsin.cases.case_report import FileRequest
from tocsin.cases.spark.file_run import run_on_file
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.history.backfill.backfill_status import BackfillState, list_days
from tocsin.history.places import begin
from tocsin.history.spark.table_versions import query_faults, run_query
from tocsin.job import main
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.spark.tables.dated_versions import DatedVersions
from tocsin.spark.tables.published_table import TableFolder

ONE = timedelta(days=1)
TODAY = datetime.now(UTC).date()
DAYS = [TODAY - back * ONE for back in (4, 3, 2)]
USERS = ("ann", "bob")
TABLE = """title = "Failures of each user in two days"
owner = "security@example.com"
history = "logins"
sql = '''{sql}'''
days = 2
key = "user_id"

[schema]
user_id = "string"
failures = "bigint"
"""
SQL = "SELECT user_id, count(*) AS failures FROM events WHERE action = 'login failed' GROUP BY user_id"
DETECTOR = '''"""More failures than before. Catches: growth. Misses: the rest. Look first at: the user."""
from pyspark.sql import functions as F
from tocsin import Levels, detector
@detector(source="logins", tables=["before"], entity="user_id", window="1 day", levels=Levels(email=0), score="rising",
          owner="o@example.com", runbook="r", stage="shadow")
def detect(events, tables):
    known = tables.join(events, "before", how="inner")
    return known.groupBy("window", "user_id").agg(F.count("*").alias("score"), F.max("failures").alias("before"))
'''


def failures(day: date) -> Counter[str]:
    """How often each user fails on `day`: as often as nobody else on any day."""
    return Counter({user: 3 + 2 * DAYS.index(day) + place for place, user in enumerate(USERS)})


def made_of(*days: date) -> Counter[str]:
    return sum((failures(day) for day in days), Counter())


@pytest.fixture
def settings(starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    files = {"tables/before.toml": TABLE.format(sql=SQL), "detectors/grown.py": DETECTOR}
    settings = project_of_batches(tmp_path, monkeypatch, files)
    for day in DAYS:
        seal_day(settings, day, _logins(day))
    return settings


def _logins(day: date) -> Iterator[dict[str, Any]]:
    users = [user for user, count in failures(day).items() for _ in range(count)]
    for number, user in enumerate([*users, None]):
        yield login(DAYS.index(day) * 1000 + number, 60.0 * number, day=day, user_id=user or USERS[0],
                    action="login failed" if user else "login")  # fmt: skip


def snapshot(settings: Settings) -> dict[tuple[str, datetime, datetime | None], int]:
    """What streams join: the failures of each user, and since and until when."""
    folder = TableFolder(settings, read_catalog(settings.project).table("before"))
    published = folder.current()
    assert published is not None
    rows = pq.read_table(folder.place(published)).to_pylist()
    return {(one["user_id"], one["valid_from"], one["valid_to"]): one["failures"] for one in rows}


def test_a_version_is_made_of_the_days_before_and_once(settings: Settings) -> None:
    refreshed = invoke(("table", "--refresh"))
    assert refreshed.exit_code == 0, refreshed.output[-3000:]
    yesterday, today, tomorrow = (begin(day) for day in (TODAY - ONE, TODAY, TODAY + ONE))
    assert snapshot(settings) == {
        (user, since, until): made_of(*days)[user]
        for since, until, days in (
            (yesterday, today, DAYS[:2]), (today, tomorrow, DAYS[1:]), (tomorrow, None, DAYS[2:]),
        )
        for user in USERS
    }  # fmt: skip
    listed = invoke(("table", "--json"))
    assert f'"complete_until": "{begin(TODAY + 2 * ONE):%Y-%m-%dT%H:%M:%S}Z"' in listed.stdout
    assert "before: up to date" in invoke(("table", "--refresh")).stdout


def test_a_backfilled_day_joins_the_version_of_its_day(settings: Settings) -> None:
    assert main(["backfill", "grown", f"--day={DAYS[2]}"]) == 0
    backfills = Backfills(settings, "grown")
    findings = backfills.findings(DAYS[2], backfills.read().published[DAYS[2]])
    assert {one.entity["user_id"]: (one.context or {})["before"] for one in findings} == made_of(DAYS[0])
    # The version of an earlier day changes nothing for streams; those of now were made with it.
    assert {since for _, since, _ in snapshot(settings)} >= {begin(TODAY), begin(TODAY + ONE)}
    assert main(["backfill", "grown", f"--day={DAYS[0]}"]) == 1
    assert DAYS[0] not in backfills.read().attempts, "it has not failed: it cannot be run"
    (standing,) = list_days(settings, ["grown"], DAYS[0], DAYS[0])
    assert standing.state is BackfillState.BLOCKED
    assert "comes before table 'before': none of the 2 days" in standing.why


def test_a_run_on_a_file_leaves_out_the_days_before_the_table(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    lines = [one for day in DAYS for one in _logins(day)]
    (tmp_path / "file").write_text("".join(json.dumps(one, default=datetime.isoformat) + "\n" for one in lines))
    request = FileRequest(detector="grown", file=tmp_path / "file", is_events=True, most=9)
    report = run_on_file(spark, settings, request, tmp_path, lambda _: None)
    assert report.days_left_out.keys() == set(DAYS[:2])
    assert "none of the 2 days of logins" in report.days_left_out[DAYS[0]]
    assert {one.entity["user_id"]: (one.context or {})["before"] for one in report.findings} == made_of(DAYS[0])
    (tmp_path / "file").write_text(json.dumps(lines[0], default=datetime.isoformat))
    with pytest.raises(TocsinError, match=r"none of the 2 days of logins.*; seal these days first"):
        run_on_file(spark, settings, request, tmp_path, lambda _: None)


def test_a_version_that_is_late_holds_from_where_nobody_has_looked(settings: Settings) -> None:
    invoke(("table", "--refresh"))
    table = read_catalog(settings.project).table("before")
    versions = DatedVersions(settings, table)
    for version in versions.read()[1:]:  # as if yesterday were the last night on which it ran
        remove_tree(versions.place(version))
    before = datetime.now(UTC)
    assert invoke(("table", "--refresh")).exit_code == 0
    held = {since for _, since, _ in snapshot(settings)}
    assert min(held) == begin(TODAY - ONE)
    late = held - {begin(TODAY - ONE), begin(TODAY + ONE)}
    assert [one for one in late if before < one < datetime.now(UTC) + table.settle]
    assert len(late) == 1


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (SQL + " HAVING false", "gives no rows"),
        ("SELECT 'ann' AS user_id, 1L AS failures FROM events", "rows of user_id = 'ann'"),
        ("SELECT user_id, CAST(NULL AS bigint) AS failures FROM events GROUP BY user_id", "no value of failures"),
        (SQL.replace("failures FROM", "fails FROM"), "gives no column 'failures'; did you mean 'fails'"),
        (SQL.replace("count(*)", "avg(1)"), "gives 'failures' as double, not bigint: cast it"),
        (SQL.replace("count(*)", "CAST(rand() AS bigint)"), "calls rand"),
        (SQL.replace("FROM events", "FROM event"), "Spark refuses it"),
    ],
)
def test_a_query_that_gives_no_table_changes_nothing(settings: Settings, sql: str, why: str) -> None:
    file = settings.project / "tables" / "before.toml"
    table = read_catalog(settings.project).table("before")
    TableFolder(settings, table).publish([], datetime.now(UTC))
    file.write_text(TABLE.format(sql=sql))
    refreshed = invoke(("table", "--refresh", "before"))
    assert refreshed.exit_code == 1
    assert why in " ".join(refreshed.output.split())
    assert snapshot(settings) == {}


def test_its_query_is_planned_without_history(spark: SparkSession, settings: Settings) -> None:
    assert query_faults(spark, settings, read_catalog(settings.project)) == []
    file = settings.project / "tables" / "before.toml"
    file.write_text(TABLE.format(sql=SQL.replace("user_id,", "user,")))
    (fault,) = query_faults(spark, settings, read_catalog(settings.project))
    assert (fault.key, fault.where) == ("sql", str(file))


def test_the_shipped_profile_is_what_a_recount_gives(spark: SparkSession) -> None:
    project = ROOT / "examples" / "profiles"
    chance, amounts = random.Random(5), defaultdict[str, list[float]](list)
    for _ in range(300):
        amounts[chance.choice("abc")].append(chance.choice([-5.0, 0.0, chance.randrange(1, 900) / 8]))
    amounts["few"] = [7.0] * 9
    rows = [(customer, amount) for customer, many in amounts.items() for amount in many]
    spec = read_catalog(project).table("usual")
    found = run_query(
        spark, Settings(project=project), spec, spark.createDataFrame(rows, "customer_id string, amount double")
    )
    expected = {}
    for customer in "abc":
        paid = [amount for amount in amounts[customer] if amount > 0]
        expected[customer] = (median(paid), median(abs(amount - median(paid)) for amount in paid))
    assert {row.customer_id: (row.median, row.mad) for row in found.collect()} == expected
