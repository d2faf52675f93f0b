"""What is kept beside history goes with it: no earlier, and whatever stops it in between."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.rig.samples.backfills import SPEC, finding, published
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import backfill_job, detector_job
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.history.backfill.backfill_ledger import Backfills, Made
from tocsin.history.backfill.backfill_planning import Sealed, plan
from tocsin.history.backfill.backfill_retention import retract_days, tidy_beside
from tocsin.history.backfill.parity.comparison import Comparison
from tocsin.history.backfill.parity.parity_report import ParityReport, keep, latest, summed
from tocsin.platform.lock import hold
from tocsin.quality.verdict import Verdict
from tocsin.quality.verdict_files import INDEX, Records, VerdictRecord, subject_of

LOGINS = read_source(Path(__file__).parents[4] / "sources" / "logins.toml")
NOW = datetime(2026, 11, 22, 3, tzinfo=UTC)
OLDEST = NOW.date() - timedelta(days=60)
BEFORE = OLDEST - timedelta(days=1)
RETIRED = "retired"


class Installation:
    """One with the detector `failed_logins`, and with what a deleted one has left."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(project=folder, state=folder / "state")
        self.records = Records(self.settings.state)
        self.catalog = Catalog(sources={"logins": LOGINS}, detectors={SPEC.name: SPEC})

    def judge(self, subject: str, *days: date) -> None:
        for day in days:
            verdict = Verdict(subject=subject, day=day, run_id=f"run-{day}", judged_at=NOW, checks=())
            self.records.write(VerdictRecord(verdict=verdict), "page")

    def publish(self, detector: str, *days: date) -> None:
        ledger = Backfills(self.settings, detector)
        for day in days:
            ledger.publish(day, [finding("u", day)], published(Made(version="v1", inputs={}), ledger.next_run(day)))
            self.judge(subject_of(detector), day)
            nothing = Comparison(stream=0, batch=0, same=0, differences=())
            report = ParityReport(
                detector=detector, day=day, run="1", version="v1", compared_at=NOW, **summed(nothing, [])
            )
            keep(self.settings.state, report)

    def tidy(self, now: datetime = NOW) -> list[str]:
        """What the log says."""
        with capture_logs() as logs:
            tidy_beside(self.settings, LOGINS, self.catalog, now)
        return [line["event"] for line in logs]

    def days(self, detector: str) -> tuple[list[date], ...]:
        """Those that are published, those with a verdict, and those that were compared with the stream."""
        judged, compared = self.records.days(subject_of(detector)), latest(self.settings.state, detector)
        return tuple(sorted(days) for days in (Backfills(self.settings, detector).read().published, judged, compared))

    def files(self) -> list[str]:
        """All but locks and the page that is written each time."""
        found = [path.relative_to(self.settings.state) for path in self.settings.state.rglob("*")]
        return sorted(str(path) for path in found if path.parts[0] != "checkpoints" and path.name != INDEX)


@pytest.fixture
def one(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_verdicts_on_findings_go_with_history_and_those_on_events_eight_weeks_later(one: Installation) -> None:
    needed = OLDEST - timedelta(weeks=8)
    one.judge("logins", needed - timedelta(days=1), needed, OLDEST)
    one.publish(SPEC.name, BEFORE, OLDEST)
    assert one.tidy() == []
    assert sorted(one.records.days("logins")) == [needed, OLDEST]
    assert one.days(SPEC.name) == ([OLDEST], [OLDEST], [OLDEST])
    page = (one.records.folder / INDEX).read_text()
    assert (f"{OLDEST}/run" in page, f"{BEFORE}/run" in page) == (True, False)
    before = one.files()
    assert (one.tidy(), one.files()) == ([], before)


def test_a_deleted_detector_is_gone_when_its_last_day_is(one: Installation) -> None:
    one.publish(RETIRED, BEFORE, OLDEST)
    one.tidy()
    assert one.days(RETIRED) == ([OLDEST], [OLDEST], [OLDEST])
    one.tidy(NOW + timedelta(days=1))
    assert not [name for name in one.files() if RETIRED in name]


def test_the_longest_history_decides_on_a_detector_whose_source_is_not_known_any_more(one: Installation) -> None:
    one.publish(RETIRED, BEFORE)
    one.catalog.sources["other"] = LOGINS.model_copy(update={"name": "other", "history_days": 61})
    one.tidy()
    assert one.days(RETIRED) == ([BEFORE], [BEFORE], [BEFORE])


def test_a_file_that_cannot_be_read_says_nothing_about_its_detector(one: Installation) -> None:
    one.publish(RETIRED, BEFORE)
    one.catalog.broken[f"detectors/{RETIRED}"] = ConfigError.one("it", "is broken")
    one.tidy()
    assert one.days(RETIRED) == ([BEFORE], [BEFORE], [BEFORE])


def test_what_a_backfill_works_on_is_left_to_the_next_time(one: Installation) -> None:
    one.publish(SPEC.name, BEFORE)
    one.publish(RETIRED, BEFORE)
    with hold(one.settings.checkpoint(backfill_job(SPEC.name)) / "lock"):
        assert one.tidy() == ["clean-up deferred"]
        assert one.days(SPEC.name) == ([BEFORE], [BEFORE], [BEFORE])
        assert one.days(RETIRED) == ([], [], [])
    one.tidy()
    assert one.days(SPEC.name) == ([], [], [])


def test_what_cannot_be_read_is_left_alone_and_said(one: Installation) -> None:
    one.publish(RETIRED, BEFORE, OLDEST)
    record = one.settings.state / one.records.place(subject_of(RETIRED), BEFORE, f"run-{BEFORE}", "json")
    record.write_text("{")
    ledger = Backfills(one.settings, RETIRED).file
    ledger.write_text("{")
    before = one.files()
    said = ["old verdict unreadable, kept", "backfill ledger unreadable, kept"]
    assert one.tidy() == said
    assert set(before) - set(one.files()) == {f"parity/{RETIRED}/{BEFORE}.json"}


def test_days_that_were_withdrawn_have_no_findings_and_run_again_once_they_are_history(one: Installation) -> None:
    one.publish(SPEC.name, BEFORE, OLDEST)
    retract_days(one.settings, LOGINS, one.catalog, [BEFORE])
    backfills = Backfills(one.settings, SPEC.name)
    known = backfills.read().published
    assert [len(list(backfills.findings(day, known[day]))) for day in (BEFORE, OLDEST)] == [0, 1]
    assert plan(backfills.read(), SPEC, Sealed({BEFORE: "v1"}), [BEFORE]).days.keys() == {BEFORE}


@pytest.mark.parametrize("removed", range(6))
def test_what_is_stopped_in_between_goes_on_the_next_time(
    one: Installation, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    one.judge("logins", OLDEST - timedelta(weeks=9))
    one.publish(RETIRED, BEFORE)
    whole, count = Path.unlink, 0

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        if path.exists():
            count += 1
            if count > removed:
                raise OSError("stopped")
        whole(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        assert one.tidy() == ["clean-up failed"]
    assert one.tidy() == []
    assert not [name for name in one.files() if RETIRED in name or "logins" in name]


def _leave(settings: Settings, name: str) -> list[Path]:
    """What the jobs of a detector leave in the state folder."""
    jobs = [detector_job(name), backfill_job(name)]
    left = [settings.checkpoint(job) / "0a1b" / "query" / "metadata" for job in jobs]
    left += [path for job in jobs for path in (settings.log(job), settings.log(job).with_suffix(".log.1"))]
    left += [settings.state / folder / f"detector__{name}.json" for folder in ("heartbeats", "supervision/starts")]
    left += [
        settings.state / "models" / name / "a.pickle",
        settings.state / "tables" / f"model.{name}" / "current.json",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return left


def test_what_a_deleted_detector_has_left_goes_after_the_days_of_history(one: Installation) -> None:
    left = {name: _leave(one.settings, name) for name in ("gone", "gone_too", "broken", "unread", "back", SPEC.name)}
    ingest = one.settings.log("ingest:gone")
    ingest.write_text("of a source")
    one.catalog.broken["detectors/broken"] = ConfigError([])
    unread = one.settings.project / "detectors" / "unread.py"
    unread.parent.mkdir()
    unread.write_text("def detect(:")

    def there() -> set[str]:
        assert ingest.exists()
        found = {name: [path.exists() for path in paths] for name, paths in left.items()}
        return {name for name, one in found.items() if all(one)}

    assert "state of deleted detector removed" not in one.tidy()
    assert "state of deleted detector removed" not in one.tidy(NOW + timedelta(days=59))
    back = one.settings.project / "detectors" / "back.py"
    back.write_text("")
    one.tidy(NOW + timedelta(days=59))
    back.unlink()
    with hold(one.settings.checkpoint(detector_job("gone_too")) / "lock"):
        assert "state of deleted detector left alone" in one.tidy(NOW + timedelta(days=60))
    assert there() == {"gone_too", "broken", "unread", "back", SPEC.name}
    assert not any(path.exists() for path in left["gone"])
    assert not one.settings.checkpoint(detector_job("gone")).exists()
    one.tidy(NOW + timedelta(days=61))
    assert there() == {"broken", "unread", "back", SPEC.name}, "days count anew of what was declared again"
    one.tidy(NOW + timedelta(days=120))
    assert there() == {"broken", "unread", SPEC.name}
