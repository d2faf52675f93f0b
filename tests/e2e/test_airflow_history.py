"""Airflow makes what history gives: tables of sealed days before detectors read them, and views computed anew."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.rig.stack import ROOT, Stack
from tests.rig.under_airflow import BATCH_SECONDS, Running
from tests.rig.waiting import await_that

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
HISTORY, REBUILD = "history__purchases", "backfill__view.bought"
CUSTOMERS = ("ann", "bob", "eve")
YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
# A table of history holds from two days after the first of them.
DAYS = [YESTERDAY - timedelta(days=back) for back in (2, 1, 0)]
VIEW = '''"""Purchases of each customer in each hour."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="purchases", key="customer_id", window="1 hour", sink="sqlite", keep="30 days",
      owner="fraud@example.com", stage="live")
def view(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "customer_id").agg(F.count("*").alias("count"))
'''


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    stack = Stack(tmp_path_factory.mktemp("airflow-history"), sources=False)
    shutil.copytree(ROOT / "examples" / "profiles", stack.project, dirs_exist_ok=True)
    (stack.project / "views").mkdir()
    (stack.project / "views" / "bought.py").write_text(VIEW)
    try:
        stack.up("--free-ports", "--airflow")
        stack.ready()
        yield Running(stack)
    finally:
        stack.end()


def purchases() -> list[dict[str, object]]:
    """Twenty ordinary purchases of each customer on each day, and one of ann on the last that is not."""
    rows: list[dict[str, object]] = [
        {"customer_id": customer, "timestamp": f"{day}T{hour:02}:05:09Z", "amount": 20.0 + hour % 5}
        for day in DAYS
        for hour in range(20)
        for customer in CUSTOMERS
    ]
    return [*rows, {"customer_id": "ann", "timestamp": f"{YESTERDAY}T21:00:00Z", "amount": 900.0}]


def test_a_night_makes_the_tables_of_history_and_the_detectors_that_join_them_run(running: Running) -> None:
    file = running.stack.state / "past.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in purchases()))
    done = running.stack.tocsin("history", "import", str(file), "--source", "purchases")
    assert done.returncode == 0, done.stdout + done.stderr
    run = running.admin.trigger(HISTORY)
    running.await_end(HISTORY, run, "success")
    states = running.admin.states(HISTORY, run)
    assert {task: states[task] for task in ("seal", "refresh_tables", "catch_up")} == dict.fromkeys(
        ("seal", "refresh_tables", "catch_up"), "success"
    )
    (table,) = json.loads(running.stack.tocsin("table", "--json").stdout)
    assert table["rows"] >= len(CUSTOMERS), table
    said = running.admin.log(HISTORY, run, "catch_up")
    assert f"spending_outlier {YESTERDAY}: published, 1 finding" in said, said
    assert "comes before table 'usual': none of the 60 days" in said, said


def test_a_triggered_rebuild_shows_what_is_sealed(running: Running) -> None:
    run = running.admin.trigger(REBUILD)
    running.await_end(REBUILD, run, "success")
    truth = Counter((row["customer_id"], str(row["timestamp"])[:13]) for row in purchases())

    def shown() -> Counter[tuple[object, str]]:
        rows = json.loads(running.stack.tocsin("view", "bought", "--limit", "1000", "--json").stdout or "[]")
        return Counter({(row["name"], row["window_start"][:13]): row["values"]["count"] for row in rows})

    await_that(lambda: shown() == truth, BATCH_SECONDS, shown)
