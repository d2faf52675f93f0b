"""Landed days of an installation, and the programs that seal them and run detectors over them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from bench.past import Expected, Past, land_past
from bench.sealed import seal_past
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that, patient
from tocsin.declare.blocks.spark_settings import LOCAL, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.source import Source
from tocsin.declare.setting_blocks import HistorySettings, StorageSettings
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.history.day_status import published_days
from tocsin.history.day_versions import paths
from tocsin.history.places import Places
from tocsin.platform import child_process
from tocsin.platform.storage.stored_path import open_stored
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment

WINDOWED, STEPPED = "failed_logins", "quick_failures"
Row = tuple[int, str, datetime, int, str]
_COLUMNS = ("user_id", "event_time", "raw_offset", "action")
GOOD = (0, 10)
UNREAD = (1,)
"""The exit code of a seal that has no Kafka to read: it seals what has landed, and says at its end what it lacked."""
_TASK = Path(__file__).parents[1] / "airflow" / "run_task.py"
_SECONDS = 240
_STEP = '''"""Failures of a user within 50 ms of one before. Catches: programs. Misses: people. Look first at: who."""

from dataclasses import dataclass
from datetime import datetime

from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Before:
    time: datetime | None = None


@detector(source="logins", entity="user_id", window=None, forget_after="1 minute", levels=Levels(email=950),
          owner="a@example.com", runbook="docs/runbooks/a.md", stage="live")
def step(key: str, state: Before, event: Event) -> tuple[Before, list[StepFinding]]:
    if event.action != "login failed":
        return state, []
    now = Before(event.event_time)
    if state.time is None:
        return now, []
    gap = (event.event_time - state.time).total_seconds() * 1000
    return now, [StepFinding(1000 - gap, {})] if gap < 50 else []
'''


class HistoryStore(NamedTuple):
    """Where history lies that is in an object store: its settings, and the file with the address of its catalogue."""

    storage: StorageSettings
    catalog_file: Path


class PastDays:
    """An installation in `folder` whose batches run on `master`."""

    def __init__(
        self, folder: Path, past: Past, master: str = LOCAL, store: HistoryStore | None = None, **resources: Any
    ) -> None:
        """Land `past`, in a `store` if one is given; what its findings must be is `expected`."""
        copy_project(folder / "project", "sources", "detectors", "expectations")
        (folder / "project" / "detectors" / f"{STEPPED}.py").write_text(_STEP, encoding="utf-8")
        spark = SparkSettings.model_validate({"master": master, "resources": resources})
        self.settings = Settings(project=folder / "project", state=folder / "state", spark=spark)
        if store is not None:
            kept = {"storage": store.storage, "history": HistorySettings(catalog_file=store.catalog_file)}
            self.settings = self.settings.model_copy(update={"instance": "tests", **kept})
        self.source = read_catalog(self.settings.project).source("logins")
        self.log, self.past = folder / "log.txt", past
        self.log.touch()
        self.expected: Expected = land_past(self.settings, self.source, past)

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of `spark_jobs/`; `await_end` must follow, or the test process ends."""
        return self._start([sys.executable, str(here().root / "spark_jobs" / f"{program}.py"), *arguments], {})

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Start `tocsin WORDS...` in the same way."""
        return self._start([str(here().venv / "bin" / "tocsin"), *words], {})

    def submit(self, connection: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the same by spark-submit, as a task of Airflow does whose connection names the master `connection`."""
        address = {"conn_type": "spark", "host": connection}
        airflow = {
            "AIRFLOW_HOME": str(self.settings.state.with_name("airflow")),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(address),
        }
        return self._start([str(here().airflow_venv / "bin" / "python"), str(_TASK), program, *arguments], airflow)

    def ask(self, *words: str) -> tuple[int, str]:
        """Run `tocsin WORDS...`; its exit code, and its standard output."""
        command = [str(here().venv / "bin" / "tocsin"), *words]
        environment = job_environment(self.settings, find_java().home)
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, timeout=patient(_SECONDS), check=False
            )
        return done.returncode, done.stdout.decode()

    def await_end(self, process: subprocess.Popen[bytes], codes: Sequence[int] = GOOD) -> None:
        """Wait until it has ended with one of `codes`."""
        await_that(lambda: process.poll() is not None, _SECONDS, self.said)
        assert process.returncode in codes, self.said()

    def said(self) -> str:
        """The end of what the programs have logged."""
        return self.log.read_text(errors="replace")[-5000:]

    def _start(self, command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        environment = job_environment(self.settings, find_java().home) | variables
        with self.log.open("ab") as log:
            return subprocess.Popen([*child_process.prefix(), *command], env=environment, stdout=log, stderr=log)

    def executors_lost(self) -> int:
        return self.log.read_text(errors="replace").count("Lost executor")

    def check(self) -> None:
        """Compare what is sealed and what both detectors have found with what happened."""
        assert self.sealed() == self.true_rows()
        windows = {(one.entity["user_id"], one.window_start): one.score for one in self.findings(WINDOWED)}
        assert windows == self.expected
        found = sorted((one.entity["user_id"], one.moment) for one in self.findings(STEPPED))
        assert found == self.quick_failures() != []

    def sealed(self) -> list[Row]:
        """Read the rows of all published days: bucket, user, time, offset and action, in order."""
        return _rows(self.settings, self.source)

    def true_rows(self) -> list[Row]:
        """List the same of an installation whose days were not sealed by Spark."""
        on_disk = {"storage": StorageSettings(), "history": HistorySettings()}
        other = self.settings.model_copy(update={"state": self.settings.state.with_name("truth"), **on_disk})
        seal_past(other, self.source, self.past)
        return _rows(other, self.source)

    def findings(self, detector: str) -> list[Finding]:
        backfills = Backfills(self.settings, detector)
        return [one for day, run in backfills.read().published.items() for one in backfills.findings(day, run)]

    def quick_failures(self) -> list[tuple[str, datetime]]:
        """List the user and the time of what STEPPED must find, in order."""
        found, before = [], dict[str, datetime]()
        for _, user, moment, _, action in sorted(self.true_rows(), key=lambda row: row[2:4]):
            if action == "login failed":
                if user in before and moment - before[user] < timedelta(milliseconds=50):
                    found.append((user, moment))
                before[user] = moment
        return sorted(found)


def _rows(settings: Settings, source: Source) -> list[Row]:
    places, rows = Places.of(settings, source.name), list[Row]()
    for day, version in published_days(settings, source).items():
        for path in paths(places, day, version):
            bucket = int(path.name.split("_")[1].split(".")[0])
            with open_stored(path) as file:
                table = pq.read_table(file, columns=list(_COLUMNS))
            rows += zip([bucket] * table.num_rows, *(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return sorted(rows)
