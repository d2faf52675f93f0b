"""`tocsin promote`: what is shown, what is refused, and that one word of the file changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tests.unit.alerts.scene import FACTS, burst
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import job_usage
from tocsin.cases import worker_link
from tocsin.cases.case_report import CaseOutcome, CaseProblem, DetectorOutcome, TestReport, Way
from tocsin.cli.detectors import promote_command
from tocsin.model.detector import DetectorSpec
from tocsin.project.catalog import read_catalog
from tocsin.project.declaration import read_spec
from tocsin.project.settings import Settings, load_settings
from tocsin.provision.paths import here
from tocsin.runtime.code_versions import Version, keep_version
from tocsin.supervision.job_kinds import desired_jobs
from tocsin.supervision.planning.start_record import note_start

JOB = "detector:failed_logins"
NOW = datetime.now(UTC)


class Scene:
    """A project with one detector in shadow, whose cases end as `problems` says."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = settings
        self.file = settings.project / "detectors" / "failed_logins.py"
        self.file.write_text(self.file.read_text().replace('stage="live"', 'stage="shadow"'))
        self.content = self.file.read_bytes()
        self.problems: list[CaseProblem] = []
        monkeypatch.setattr(worker_link, "run_cases", self._run_cases)

    @property
    def spec(self) -> DetectorSpec:
        return read_spec(self.file)

    def ran(
        self, monkeypatch: pytest.MonkeyPatch, hours: float, ago: timedelta, before: timedelta | None = None
    ) -> None:
        """Let the version have started `ago`, run for `hours` since, and found two bursts of three users.

        An earlier one ran `before` that.
        """
        since = NOW - ago
        keep_version(self.settings, JOB, self.spec.version, self.content, "0123456789abcdef")
        known = Version(version=self.spec.version, fingerprint="0" * 16, first_at=since, last_at=since)
        earlier = known.model_copy(update={"version": "0" * 12, "first_at": since - (before or timedelta())})
        for module in ("tocsin.alerts.evidence.shadow_evidence", "tocsin.runtime.code_versions"):
            monkeypatch.setattr(f"{module}.kept_versions", lambda *_: [earlier, known] if before else [known])
        found = [
            one.model_copy(update={"version": self.spec.version})
            for user in ("mallory", "trent", "eve")
            for at in (since + timedelta(minutes=1), since + timedelta(minutes=2))
            for one in burst(60, user=user, at=at)[-1:]
        ]
        other = burst(60, user="by an earlier version", at=since + timedelta(minutes=1))[-1]
        database = Database(self.settings.alerts_database)
        database.migrate()
        with database.write() as connection:
            record(
                connection,
                [*found, other],
                Rules(facts={"failed_logins": FACTS.model_copy(update={"live": False})}),
                NOW,
            )
            usage = {"job": JOB, "day": since.date(), "seconds": hours * 3600, "cpu_seconds": 1.0, "rss_bytes": 1}
            connection.execute(insert(job_usage).values(**usage, rows_in=1, rows_out=1, restarts=0))
        database.close()

    def _run_cases(self, *_: object, **__: object) -> TestReport:
        case = CaseOutcome(name="burst", file=str(self.file), line=1, problems=self.problems)
        return TestReport(detectors=[DetectorOutcome(detector="failed_logins", cases=[case])], seconds=0.1)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    return Scene(load_settings(), monkeypatch)


def test_after_a_day_one_word_of_the_file_changes_and_the_plan_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.ran(monkeypatch, hours=30, ago=timedelta(hours=36))
    for job, wanted in desired_jobs(read_catalog(scene.settings.project), scene.settings).items():
        note_start(scene.settings.state, job, wanted)
    before = scene.spec.version
    done = invoke(["promote", "failed_logins"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    assert scene.file.read_bytes() == scene.content.replace(b'stage="shadow"', b'stage="live"')
    assert scene.spec.version == before
    rows = [text.split() for text in done.stdout.splitlines()]
    day = (NOW - timedelta(hours=36)).date()
    assert [str(day), "30.0", "6", "0", "3", "0"] in rows, "two bursts of one user in an hour are one alert"
    assert "is live in" in done.stdout
    assert any(row[:1] == [JOB] for row in rows), done.stdout


def test_a_dry_run_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.ran(monkeypatch, hours=30, ago=timedelta(hours=36))
    done = invoke(["promote", "failed_logins", "--dry-run"])
    assert (done.exit_code, scene.file.read_bytes()) == (0, scene.content)
    assert "can be promoted; nothing is changed" in done.stdout


def test_hours_of_the_version_before_do_not_count(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job ran the whole first day, of which this version was there for the last hour."""
    late = (NOW - timedelta(hours=48)).replace(hour=23, minute=0, second=0, microsecond=0)
    scene.ran(monkeypatch, hours=24, ago=NOW - late, before=timedelta(days=3))
    done = invoke(["promote", "failed_logins"])
    assert (done.exit_code, scene.file.read_bytes()) == (1, scene.content)
    assert "its job ran only 1.0 hours" in done.output


@pytest.mark.parametrize("force", [[], ["--force", "at once"]])
def test_failing_cases_refuse_it_whatever_is_forced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, force: list[str]
) -> None:
    scene.ran(monkeypatch, hours=30, ago=timedelta(hours=36))
    scene.problems = [CaseProblem(way=Way.BATCH, expected="email", found="")]
    done = invoke(["promote", "failed_logins", *force])
    assert (done.exit_code, scene.file.read_bytes()) == (1, scene.content)
    assert "not all cases pass" in done.output


@pytest.mark.parametrize(
    ("hours", "ago", "why"),
    [
        (None, None, "has never run here"),
        (23.0, timedelta(hours=23), "less than a day ago"),
        (2.0, timedelta(hours=48), "ran only 2.0 hours"),
    ],
)
def test_without_a_whole_day_in_shadow_it_needs_a_reason(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, hours: float | None, ago: timedelta | None, why: str
) -> None:
    if hours is not None and ago is not None:
        scene.ran(monkeypatch, hours=hours, ago=ago)
    done = invoke(["promote", "failed_logins"])
    assert (done.exit_code, scene.file.read_bytes()) == (1, scene.content)
    assert why in done.output
    forced = invoke(["promote", "failed_logins", "--force", "the attack is now"])
    assert forced.exit_code == 0, f"{forced.output}{forced.exception!r}"
    assert "the attack is now" in forced.stdout
    assert b'stage="live"' in scene.file.read_bytes()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('stage="shadow"', 'stage="live"'), "is live already"),
        (('stage="shadow"', 'stage="draft"'), "is a draft"),
        (('stage="shadow"', 'stage="retired"'), "is retired"),
        (("expect=", "expected="), "needs at least one that fires"),
    ],
)
def test_what_cannot_be_promoted_is_said(scene: Scene, change: tuple[str, str], why: str) -> None:
    scene.file.write_text(scene.content.decode().replace(*change))
    before = scene.file.read_bytes()
    done = invoke(["promote", "failed_logins"])
    assert why in str(done.exception)
    assert scene.file.read_bytes() == before


def test_an_unknown_detector_is_named_with_the_nearest(scene: Scene) -> None:
    assert "did you mean 'failed_logins'" in str(invoke(["promote", "failed_login"]).exception)
    assert scene.file.read_bytes() == scene.content


def test_the_cases_of_a_detector_on_findings_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_spec(here().root / "examples" / "takeover" / "detectors" / "password_spraying.py")
    ran: list[list[str]] = []
    monkeypatch.setattr("tocsin.cli.detectors.test_command.test", ran.append)
    promote_command._run_cases(spec)
    assert ran == [["password_spraying"]]
