"""Compare a day over a real alerts DB, ledger of backfills and history; what Spark and Kafka would say is given."""

import json
import shutil
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.findings import NOON, finding
from tests.rig.samples.history import DAY, entry, ledger
from tests.rig.samples.history import NOON as NEXT_NOON
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import LOGINS, ROOT, landed, sealed
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import streamed_findings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import Finding, Origin
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.names import parity_job
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, Made, Published
from tocsin.history.backfill.parity.comparison import DifferenceReason, ReportedFinding
from tocsin.history.backfill.parity.day_parity import compare_day, inputs, lacks
from tocsin.history.backfill.parity.parity_report import ParityReport, read
from tocsin.history.backfill.parity.reasons import Recomputation
from tocsin.history.backfill.parity.today_parity import compare_today
from tocsin.history.backfill.spark.recompute import Doubt, recompute
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.platform.code_versions import keep_version
from tocsin.platform.heartbeat import beat
from tocsin.platform.lock import LockHeld, hold
from tocsin.quality.day_facts import Hole

SPEC = read_catalog(ROOT).detector("failed_logins")


def found(user: str, score: float, origin: Origin = Origin.STREAM, version: str = SPEC.version) -> Finding:
    written = NOON + timedelta(seconds=10)
    return finding(score, user=user, origin=origin, version=version, detected_at=written)


class Installation:
    """One project with a sealed and backfilled day, and findings of the stream."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = settings
        self.watermark = NOON + timedelta(days=1)
        self.heard = ["detector:failed_logins", "indexer"]
        self.trials: list[Recomputation] = []
        self.doubts: list[Doubt] = []
        self.whole: dict[str, ReportedFinding] = {}
        monkeypatch.setattr("tocsin.history.backfill.parity.day_parity.read_reports", self._reports)
        monkeypatch.setattr("tocsin.history.backfill.parity.day_parity.list_quarantined", lambda *_: [])
        monkeypatch.setattr("tocsin.history.backfill.parity.day_parity.recompute", self._recompute)

    def stream(self, *findings: Finding) -> None:
        database = Database(self.settings.alerts_database)
        database.migrate()
        with database.write() as connection:
            record(connection, findings, Rules(facts={}), NOON)
        database.close()

    def backfill(self, *findings: Finding, version: str = SPEC.version) -> None:
        self.whole = {one.finding_id: ReportedFinding.of(one) for one in findings}
        made = Made(version=version, inputs={NOON.date(): "v1"})
        published = Published(run="20261120T043000000Z", run_id="test", made=made, at=NOON, severity="pass")
        Backfills(self.settings, SPEC.name).publish(NOON.date(), findings, published)

    def compare(self, day: date | None = None) -> ParityReport:
        return compare_day(self.settings, SPEC.name, day, partial(streamed_findings, self.settings, SPEC.name))

    def _reports(self, *_: Any) -> dict[str, JobReport]:
        return {job: self.report(job) for job in self.heard}

    def report(self, job: str) -> JobReport:
        return JobReport(job=job, at=NOON, state=JobState.RUNNING, watermark=self.watermark)

    def _recompute(self, _: Settings, doubt: Doubt) -> tuple[dict[str, ReportedFinding], list[Recomputation]]:
        self.doubts.append(doubt)
        return self.whole, self.trials


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    settings = Settings(state=tmp_path / "state", project=tmp_path)
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    keep_version(settings, "detector:failed_logins", SPEC.version, SPEC.path.read_bytes(), "0123456789abcdef")
    return Installation(settings, monkeypatch)


def test_stream_and_batch_that_agree_need_neither_spark_nor_kafka(here: Installation) -> None:
    here.stream(found("mallory", 60), found("eve", 101).model_copy(update={"at_least": True}))
    here.backfill(found("mallory", 60, Origin.BACKFILL), found("eve", 110, Origin.BACKFILL))
    compared = here.compare()
    assert (compared.day, compared.same, compared.differing) == (NOON.date(), 2, 0)
    assert here.doubts == []
    done = invoke(["parity", "--detector", "failed_logins"])
    assert done.exit_code == 0
    assert "failed_logins 2026-11-19: 2 findings agree; stream and backfill agree" in done.output


def test_what_is_not_explained_is_told_with_exit_code_1_and_kept(here: Installation) -> None:
    here.stream(found("mallory", 60), found("trudy", 70))
    here.backfill(found("mallory", 80, Origin.BACKFILL), found("trudy", 70, Origin.BACKFILL))
    done = invoke(["parity", "--detector", "failed_logins", "--day", "2026-11-19"])
    assert done.exit_code == 1
    assert "1 findings agree, 1 differ: 1 unexplained" in done.output
    assert "email 60" in done.output
    kept = read(here.settings.state, "failed_logins", NOON.date())
    assert kept is not None
    assert (kept.same, kept.unexplained, kept.run) == (1, 1, "20261120T043000000Z")


def test_a_difference_that_recomputing_proves_is_well(here: Installation) -> None:
    here.stream(found("mallory", 60))
    here.backfill(found("mallory", 80, Origin.BACKFILL))
    mallory = found("mallory", 60)
    here.trials = [Recomputation(DifferenceReason.LATE, "came late", {mallory.finding_id: ReportedFinding.of(mallory)})]
    compared = here.compare()
    assert (compared.reasons, compared.unexplained, compared.differing) == ({"late": 1}, 0, 1)
    assert (compared.differences[0].side, compared.differences[0].why) == ("differs", "came late")
    assert here.doubts[0].days.keys() == {NOON.date()}
    done = invoke(["parity", "--detector", "failed_logins", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["reasons"]) == (0, {"late": 1})


def test_what_a_backfill_has_replaced_in_the_alerts_db_is_still_what_the_stream_said(here: Installation) -> None:
    here.stream(found("mallory", 60), found("mallory", 80, Origin.BACKFILL), found("eve", 70, Origin.BACKFILL))
    here.backfill(found("mallory", 80, Origin.BACKFILL), found("eve", 70, Origin.BACKFILL))
    compared = here.compare()
    assert (compared.stream, compared.batch, compared.same) == (1, 2, 0)
    sides = {one.entity["user_id"]: one.side for one in compared.differences}
    assert sides == {"mallory": "differs", "eve": "only in the batch"}


def test_reasons_that_are_known_without_recomputing_start_no_spark(here: Installation) -> None:
    here.watermark = NOON
    here.stream(found("mallory", 60), found("eve", 70, version="000000000000"))
    here.backfill(found("mallory", 80, Origin.BACKFILL), found("eve", 71, Origin.BACKFILL))
    assert here.compare().reasons == {"another version": 1, "not closed yet": 1}
    assert here.doubts == []


def test_a_job_that_was_stopped_long_ago_is_known_by_its_last_sign_of_life(here: Installation) -> None:
    here.backfill(found("mallory", 80, Origin.BACKFILL))
    here.watermark, here.heard = NOON, ["indexer"]
    assert here.compare().reasons == {"unexplained": 1}
    beat(here.settings.state, here.report("detector:failed_logins"))
    assert here.compare().reasons == {"not closed yet": 1}


def test_a_detector_that_never_ran_as_a_stream_lacks_its_data(here: Installation) -> None:
    shutil.rmtree(here.settings.state / "checkpoints")
    here.backfill(found("mallory", 80, Origin.BACKFILL))
    compared = here.compare()
    assert compared.reasons == {"data missing": 1}
    assert compared.differences[0].why == "the stream never ran here"


def test_late_cannot_be_proved_by_another_version_of_the_detector(here: Installation) -> None:
    here.stream(found("mallory", 60, version="000000000000"))
    here.backfill(found("mallory", 80, Origin.BACKFILL, version="000000000000"), version="000000000000")
    compared = here.compare()
    assert (compared.unexplained, here.doubts) == (1, [])
    assert f"the detector is now {SPEC.version}: backfill the day again" in compared.differences[0].why


def test_a_day_without_a_backfill_is_told_with_the_way_out(here: Installation) -> None:
    for day, what, way_out in (
        (None, "no day of failed_logins", "run `tocsin backfill --detector failed_logins`"),
        (
            date(2026, 11, 19),
            "not been backfilled",
            "`tocsin backfill --detector failed_logins --from 2026-11-19 --to 2026-11-19`",
        ),
        (date(2026, 11, 17), "it is not published: nothing has landed", "`tocsin history seal --source logins`"),
        (datetime.now(UTC).date(), "it is not published: it is not over yet", "publishes it"),
    ):
        with pytest.raises(ConfigError, match=what) as told:
            here.compare(day)
        assert way_out in str(told.value)


def test_what_another_process_recomputes_is_left_to_it(here: Installation) -> None:
    doubt = Doubt(spec=SPEC, source=read_catalog(ROOT).source("logins"), days={}, differences=())
    with hold(here.settings.checkpoint(parity_job(SPEC.name)) / "lock"):
        for compare in (
            lambda: recompute(here.settings, doubt),
            lambda: compare_today(here.settings, SPEC.name, lambda _: ()),
        ):
            with pytest.raises(LockHeld, match="held by process"):
                compare()


ROUND = timedelta(seconds=1)


def test_offsets_that_were_removed_before_they_landed_lack_in_windows_around_them() -> None:
    removed = Hole(from_offset=5, to_offset=9, removed=True, after=NEXT_NOON, before=NEXT_NOON + timedelta(minutes=1))
    aborted = removed.model_copy(update={"removed": False})
    (lack,) = lacks(ledger(entry("r1", DAY, holes=[removed, aborted])), LOGINS, {})
    assert (lack.since, lack.until) == (
        NEXT_NOON - LOGINS.lateness,
        NEXT_NOON + timedelta(minutes=1) + LOGINS.max_ahead,
    )
    assert "partition 0 of Kafka's topic: offsets 5 to 9 were removed" in lack.what
    assert lack.touches(NEXT_NOON, NEXT_NOON + ROUND)
    assert not lack.touches(NEXT_NOON - timedelta(minutes=1), NEXT_NOON - timedelta(seconds=50))


def test_what_landed_after_the_version_that_was_read_lacks_in_its_day(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    places = Places.of(settings, "logins")
    landed(settings, "r1", 5)
    version = sealed(settings, "v1", 5)
    assert list(lacks(read_ledger(places), LOGINS, {DAY: version})) == []
    landed(settings, "r2", 3, at=5)
    (lack,) = lacks(read_ledger(places), LOGINS, {DAY: version})
    assert f"more events landed for {DAY}" in lack.what
    assert not lack.touches(NEXT_NOON, NEXT_NOON + ROUND)  # which is on the next day
    assert lack.touches(NEXT_NOON - timedelta(days=1), NEXT_NOON)


def test_the_versions_that_a_backfill_has_read_are_found_or_it_is_told(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    landed(settings, "r1", 5)
    version = sealed(settings, "v1", 5)

    def of(name: str) -> Published:
        made = Made(version="a", inputs={DAY: name})
        return Published(run="r", run_id="test", made=made, at=NEXT_NOON, findings=0, sha256="", severity="pass")

    assert inputs(settings, LOGINS, of("v1"))[DAY].version == version.version
    with pytest.raises(ConfigError, match="backfill the day again"):
        inputs(settings, LOGINS, of("v0"))
