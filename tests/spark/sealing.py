"""A history of `logins` for tests: events are landed without Kafka, days are sealed with a gate of the test's own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.landed import LandingWriter, arrow_schema
from tests.rig.samples.project import copy_project
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import Entry, OffsetSpan, Quarantined, read_ledger, record
from tocsin.history.places import Places, begin
from tocsin.history.spark.seal import SealedDay, Sealer
from tocsin.platform import logs
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.day_profile import Profile
from tocsin.quality.spark.day_gate import DayGate
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict

ROOT = Path(__file__).parents[2]
DAY = date(2026, 11, 19)


@dataclass
class Judge(DayGate):
    """Says `severity` of every day, and remembers what it was shown."""

    severity: Severity = Severity.PASS
    facts: list[DayFacts] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def profiles(self, sealed: DataFrame, day: str, facts: Sequence[DayFacts]) -> dict[date, Profile]:
        return {}

    def judge(self, day: date, sealed: DataFrame, facts: DayFacts, profile: Profile | None = None) -> Verdict:
        self.facts.append(facts)
        self.rows.append(sealed.count())
        bad = self.severity is not Severity.PASS
        check = Check(
            name="test",
            stage=CheckStage.DAY,
            severity=self.severity if bad else Severity.INFO,
            passed=not bad,
            observed="1",
            limit="0",
        )
        return Verdict(
            subject=facts.source,
            day=day,
            run_id=facts.version,
            judged_at=datetime.now(UTC),
            checks=(check,),
            report=Path("quality/report.html"),
        )


class History:
    """Landing, ledger and table of `logins` in a folder."""

    def __init__(self, folder: Path, source: Source | None = None) -> None:
        self.settings = Settings(state=folder, project=ROOT)
        declared = source or read_source(ROOT / "sources" / "logins.toml")
        self.source = declared.model_copy(update={"history_days": 3650})
        self.places = Places.of(self.settings, self.source.name)
        self._runs = 0

    def land(
        self,
        events: Iterable[dict[str, Any]],
        *,
        source: Source | None = None,
        quarantined: Mapping[date, int] | None = None,
    ) -> Entry:
        """One run of landing that brought `events`, each into partition 0, and saw so many records in quarantine."""
        self._runs += 1
        declared = source or self.source
        columns = columns_of(declared)
        rows = list(events)
        writer = LandingWriter(self.places, f"20261120T{self._runs:09d}Z", declared)
        writer.write(pa.Table.from_pylist(rows, arrow_schema(columns)))
        moment = datetime(2026, 11, 20, 12, tzinfo=UTC)
        span = OffsetSpan(from_offset=0, to_offset=0, events=len(rows), newest_append=moment, newest_tick=moment)
        entry = Entry(
            run=writer.run,
            began=moment,
            ended=moment,
            topic="events.logins",
            partitions={0: span},
            quarantined=Quarantined(positions={0: 0}, days=dict(quarantined or {})),
            columns=columns,
            files=tuple(writer.files),
        )
        record(self.places, entry)
        return entry

    def table(self) -> DayTable:
        return DayTable(self.settings, self.source)

    def version(self, day: date, name: str) -> DayVersion:
        with self.table() as table:
            return table.rows.version(day, name)

    def seal(self, spark: SparkSession, judge: DayGate | None = None, day: date = DAY) -> SealedDay:
        with self.table() as table:
            sealer = Sealer(spark, self.settings, self.source, table, judge or Judge())
            return sealer.seal(day, read_ledger(self.places))


def login(number: int, seconds: float = 0.0, **columns: Any) -> dict[str, Any]:
    """Event `number` of DAY, at `seconds` of it; any column may be given."""
    moment = begin(columns.pop("day", DAY)) + timedelta(seconds=seconds)
    return {
        "raw_topic": "raw.logins",
        "raw_partition": number % 2,
        "raw_offset": number,
        "event_time": moment,
        "ingested_at": moment + timedelta(milliseconds=5),
        "source": "logins",
        "schema_version": 1,
        "user_id": f"user-{number % 7}",
        "timestamp": moment,
        "ip_address": "192.0.2.1",
        "action": "login failed",
        "message": None,
    } | columns


def project_of_batches(folder: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> Settings:
    """Make a project with `files`, by their paths in it, that batches of this process find and do not log of."""
    project = folder / "project"
    copy_project(project, "sources", "expectations")
    for place, text in files.items():
        (project / place).parent.mkdir()
        (project / place).write_text(text)
    monkeypatch.setenv("TOCSIN_PROJECT", str(project))
    monkeypatch.setenv("TOCSIN_STATE", str(folder / "state"))
    monkeypatch.setattr(logs, "configure", lambda _job: None)
    return Settings(project=project, state=folder / "state")
