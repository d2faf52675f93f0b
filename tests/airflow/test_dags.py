"""The DAG files, read by Airflow itself."""

import json
import shlex
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.interpreter import Interpreter
from tests.rig.samples.project import copy_project
from tocsin.history.backfill.backfill_status import BackfillDay, BackfillState
from tocsin.setup.java import archive_path
from tocsin.setup.paths import Paths, here

ROOT = here().root
DAGS = ROOT / "dags"
OURS = {
    "backfill__failed_logins",
    "detector__failed_logins",
    "history__logins",
    "housekeeping",
    "mails",
    "platform",
    "supervisor",
}
HEAVY = {"confluent_kafka", "detectors", "failed_logins", "great_expectations", "numpy", "pandas", "pyarrow", "pyspark"}
Ends = Callable[..., dict[str, tuple[list[str], str, str]]]


class Project:
    """Our sources and detectors, as an installation of its own."""

    def __init__(self, folder: Path, interpreter: Interpreter) -> None:
        self.folder, self._interpreter = folder, interpreter
        copy_project(folder)

    def declare(self, name: str, old: str = "", new: str = "") -> None:
        text = (self.folder / "detectors" / "failed_logins.py").read_text()
        assert old in text
        (self.folder / "detectors" / f"{name}.py").write_text(text.replace(old, new))

    def read(self, *arguments: str) -> dict[str, Any]:
        """What Airflow finds."""
        own = {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "TOCSIN_PROJECT": str(self.folder),
            "TOCSIN_STATE": str(self.folder / "state"),
        }
        found: dict[str, Any] = self._interpreter.ask("read_dags.py", str(DAGS), *arguments, **own)
        return found


@pytest.fixture
def project(tmp_path: Path, interpreter: Interpreter) -> Project:
    return Project(tmp_path, interpreter)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, interpreter: Interpreter) -> dict[str, Any]:
    return Project(tmp_path_factory.mktemp("project"), interpreter).read()


def test_the_dags_are_there_without_an_error(found: dict[str, Any]) -> None:
    assert found["errors"] == {}
    assert set(found["dags"]) == OURS


def test_nothing_heavy_is_imported_to_read_them(found: dict[str, Any]) -> None:
    assert HEAVY & set(found["modules"]) == set()
    assert "tocsin" in found["modules"]


def test_each_says_what_it_is_and_whose(found: dict[str, Any]) -> None:
    for name, dag in found["dags"].items():
        assert dag["tags"], name
        assert dag["description"], name
        assert len(dag["doc"]) > 100, name
        assert Path(dag["file"]).parent == DAGS, name
        assert not dag["paused"], name
    detector = found["dags"]["detector__failed_logins"]
    assert detector["owner"] == "security@example.com"
    assert detector["mail"] == ["security@example.com"]
    assert found["dags"]["platform"]["mail"] == ["platform@example.com"]
    assert detector["tags"] == ["detector", "live", "logins"]
    assert "Misses: slow guessing" in detector["doc"]
    assert detector["schedule"] == "None"


def test_the_form_of_a_detector_offers_what_can_be_done(found: dict[str, Any]) -> None:
    params = found["dags"]["detector__failed_logins"]["params"]
    assert list(params) == ["action"]
    actions = ["restart", "status"]
    assert (params["action"]["default"], params["action"]["enum"]) == ("restart", actions)
    assert found["dags"]["platform"]["params"]["job"]["enum"] == [
        "engine:live-1",
        "ingest:logins",
        "indexer",
        "notifier",
        "web",
    ]


def test_every_form_can_be_sent_as_it_opens(project: Project) -> None:
    shutil.copytree(ROOT / "examples" / "words", project.folder, dirs_exist_ok=True)
    found = project.read()
    forms = {name: dag["faulty"] for name, dag in found["dags"].items() if dag["params"]}
    kinds = {
        "backfill__failed_logins",
        "backfill__view.word_counts",
        "detector__failed_logins",
        "flow__words",
        "platform",
    }
    assert forms.keys() >= kinds
    assert not any(forms.values()), forms


def test_the_supervisor_is_alone_and_never_tried_again(found: dict[str, Any]) -> None:
    supervisor = found["dags"]["supervisor"]
    assert supervisor["max_active_runs"] == 1
    assert supervisor["retries"] == {"look": 0, "tell": 0}
    assert supervisor["pools"] == ["default_pool", "supervision"]


def test_the_supervisor_looks_at_a_difference_and_each_minute_in_any_case(found: dict[str, Any]) -> None:
    assert found["dags"]["supervisor"]["begins"] == ["Asset or * * * * *", ["drift"]]


def test_history_is_sealed_each_night_and_its_source_owner_hears_of_a_failure(found: dict[str, Any]) -> None:
    history = found["dags"]["history__logins"]
    assert history["begins"] == ["10 2 * * *", []]
    assert history["max_active_runs"] == 1
    assert history["mail"] == ["platform@example.com", "security@example.com"], "of the source, and of its detector"
    announced = {"announce__failed_logins": 2, "announce__logins": 2}
    assert history["retries"] == {"seal": 1, "catch_up": 1, "all_well": 0} | announced
    assert history["pools"] == ["backfill", "default_pool"]


def test_one_refused_day_holds_up_no_other_and_still_fails_the_night(found: dict[str, Any]) -> None:
    history = found["dags"]["history__logins"]
    assert (history["rules"]["catch_up"], history["upstream"]["catch_up"]) == ("one_done", ["seal"])
    assert (history["rules"]["all_well"], history["upstream"]["all_well"]) == ("all_success", ["catch_up", "seal"])


def test_a_backfill_takes_the_days_from_the_first_to_the_last_and_the_night_comes_after_seal(
    found: dict[str, Any],
) -> None:
    backfill = found["dags"]["backfill__failed_logins"]
    assert backfill["days"]["backfill"] == ["2026-01-30", "2026-01-31", "2026-02-01"]
    assert backfill["days"]["night"] == ["2026-01-30T04:00:00+00:00", "2026-01-29"]
    # What announces a published day takes no slot of the backfills.
    assert (backfill["max_active_runs"], backfill["pools"]) == (1, ["backfill", "default_pool"])
    assert backfill["mail"] == ["security@example.com"]
    assert (backfill["rules"]["parity"], backfill["upstream"]["parity"]) == ("none_failed", ["run"])
    assert backfill["params"]["day"]["format"] == "date"


def test_a_view_is_computed_anew_when_somebody_triggers_it(project: Project) -> None:
    folder = ROOT / "examples" / "words"
    for name in ("sources/words.toml", "sources/lines.toml", "flows/words.py", "views/word_counts.py"):
        (project.folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / name, project.folder / name)
    found = project.read("backfill__view.word_counts")
    assert found["errors"] == {}
    assert [name for name in found["dags"] if name.startswith("backfill__")] == ["backfill__view.word_counts"]
    dag = found["dags"]["backfill__view.word_counts"]
    assert (dag["schedule"], dag["max_active_runs"], dag["pools"]) == ("None", 1, ["backfill"])
    assert (dag["mail"], dag["retries"]) == (["platform@example.com"], {"rebuild": 0})
    assert dag["params"]["incomplete"]["default"] is False


def test_only_detectors_whose_findings_are_kept_are_backfilled(project: Project) -> None:
    for stage in ("draft", "shadow", "retired"):
        project.declare(f"in_{stage}", 'stage="live"', f'stage="{stage}"')
    project.declare("broken", '"10 seconds"', '"ten seconds"')
    found = project.read()
    backfills = {name for name in found["dags"] if name.startswith("backfill__")}
    assert backfills == {"backfill__failed_logins", "backfill__in_shadow"}


def test_a_broken_detector_is_shown_as_such_and_hides_nothing(project: Project) -> None:
    project.declare("other", '"10 seconds"', '"ten seconds"')
    project.declare("raises", "from pyspark", "raise SystemExit('imported')  # from pyspark")
    (project.folder / "detectors" / "worse.py").write_text("def detect(:")
    found = project.read()
    assert found["errors"] == {}
    more = {f"detector__{name}" for name in ("other", "raises", "worse")} | {"backfill__raises"}
    assert set(found["dags"]) == OURS | more
    broken = {name for name, dag in found["dags"].items() if "broken" in dag["tags"]}
    assert broken == {"detector__other", "detector__worse"}, "one that raises is not imported, so it looks well"
    assert "ten seconds" in found["dags"]["detector__other"]["doc"]


def test_a_task_reads_its_own_dag_alone(project: Project) -> None:
    project.declare("other")
    for kind in ("detector", "backfill"):
        found = project.read(f"{kind}__other")
        assert {name for name in found["dags"] if name.startswith(f"{kind}__")} == {f"{kind}__other"}


def test_thirty_detectors_are_read_in_a_moment(project: Project) -> None:
    for number in range(29):
        project.declare(f"light_{number}")
    found = project.read()
    assert len(found["dags"]) == len(OURS) + 2 * 29
    assert found["seconds"] < 10, "Airflow reads them again every few seconds"


def test_a_run_is_about_its_day_or_about_all_that_are_due(interpreter: Interpreter) -> None:
    runs = {
        ("scheduled", "2026-01-31", None): None,
        ("backfill", "2026-01-31", None): "2026-01-31",
        ("backfill", "2026-01-31", "2026-01-01"): "2026-01-31",
        ("manual", None, "2026-01-01"): "2026-01-01",
        ("manual", None, None): None,
        ("manual", None, ""): None,
        ("manual", "2026-01-31", None): "2026-01-31",
    }
    assert interpreter.ask("ask_tasks.py", "asked", json.dumps(list(runs))) == list(runs.values())


def test_published_days_are_events_of_assets_also_if_another_day_was_refused(found: dict[str, Any]) -> None:
    history, backfill = found["dags"]["history__logins"], found["dags"]["backfill__failed_logins"]
    own = {"announce__failed_logins": ["backfill__failed_logins"]}
    assert history["outlets"] == {"announce__logins": ["history__logins"]} | own
    assert backfill["outlets"] == own
    for dag, task, before in ((history, "logins", "seal"), (history, "failed_logins", "catch_up"),
                              (backfill, "failed_logins", "run")):  # fmt: skip
        name = f"announce__{task}"
        assert (dag["rules"][name], dag["upstream"][name]) == ("all_done", [before])


def test_a_dag_of_others_runs_for_each_day_that_is_published(interpreter: Interpreter) -> None:
    asked = interpreter.ask(
        "ask_tasks.py", "announced", json.dumps([["logins", True], ["other", True], ["logins", False]])
    )
    assert asked == {"keys": ["2026-01-31"], "consumer": ["history__logins", "2026-01-31"]}
    assert interpreter.ask("ask_tasks.py", "announced", json.dumps([["logins", False]]))["keys"] is None


def test_a_backfill_has_something_to_do_when_a_day_is_due(interpreter: Interpreter) -> None:
    states = [BackfillState.DONE, BackfillState.BLOCKED, BackfillState.DUE]
    days = [BackfillDay(detector="d", day=date(2026, 1, 31), state=state).model_dump_json() for state in states]
    said = interpreter.run("ask_tasks.py", "due", f"[{', '.join(days)}]")
    assert said.splitlines() == ["2026-01-31: ", "true"]
    assert interpreter.ask("ask_tasks.py", "due", f"[{', '.join(days[:2])}]") is False


def test_an_incident_is_shown_by_one_run_of_the_dag_of_its_job(interpreter: Interpreter, tmp_path: Path) -> None:
    state = {"TOCSIN_STATE": str(tmp_path)}
    detector, platform = interpreter.ask("ask_tasks.py", "runs", **state)
    assert (detector["trigger_dag_id"], platform["trigger_dag_id"]) == ("detector__failed_logins", "platform")
    event = {"job": "detector:failed_logins", "condition": "crash loop", "reason": "4 failures"}
    assert detector["conf"] == {"event": event}
    assert interpreter.ask("ask_tasks.py", "runs", "platform", **state) == [detector]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "", ""),
        ('stage="live"', 'stage="draft"', "detector:failed_logins is not restarted: draft"),
        ("def detect(", "def detect(:", "detector:failed_logins is not restarted: broken: The job is not started. "),
    ],
)
def test_what_could_not_be_started_again_is_not_stopped(
    project: Project, interpreter: Interpreter, old: str, new: str, why: str
) -> None:
    project.declare("failed_logins", old, new)
    own = {"TOCSIN_PROJECT": str(project.folder), "TOCSIN_STATE": str(project.folder / "state")}
    said = interpreter.ask("ask_tasks.py", "restart", "detector:failed_logins", **own)
    assert (said.startswith(why), bool(said)) == (True, bool(why))


@pytest.fixture
def ends(interpreter: Interpreter, tmp_path: Path) -> Ends:
    """Tells what `end_program.py` says of each exit code."""
    own = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}'}
    return lambda *codes, **more: interpreter.ask("end_program.py", *codes, **own, **more)


def test_a_program_uses_the_archive_of_classes_once_there_is_one(ends: Ends, tmp_path: Path) -> None:
    paths, java = Paths(here().root, tmp_path / "home"), tmp_path / "java"
    jars = [paths.jars("spark") / name for name in ("a.jar", "b.jar")]
    for jar in jars:
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.touch()
    places = {"TOCSIN_HOME": str(paths.home), "JAVA_HOME": str(java)}
    command, *_ = ends("0", **places)["0"]
    assert command[command.index("--driver-class-path") + 1] == f"{jars[0]}:{jars[1]}", "as it was when it was made"
    assert not [word for word in command if "SharedArchiveFile" in word]
    archive = archive_path(paths, java)
    archive.parent.mkdir()
    archive.touch()
    command, *_ = ends("0", **places)["0"]
    assert [word for word in command if f"-XX:SharedArchiveFile={archive}" in shlex.split(word)]


def test_a_warning_is_no_failure_and_what_a_retry_does_not_mend_is_not_retried(ends: Ends) -> None:
    ended = {code: error for code, (_, error, _) in ends("0", "10", "20", "2", "1", "3", "4", "-9").items()}
    assert ended == {"0": "", "10": ""} | dict.fromkeys(["20", "2"], "AirflowFailException") | dict.fromkeys(
        ["1", "3", "4", "-9"], "AirflowException"
    )


def test_a_program_that_failed_says_why_and_not_how_it_was_started(ends: Ends) -> None:
    said = {code: text for code, (_, _, text) in ends("2", "20", "-9", "143").items()}
    assert not [text for text in said.values() if "spark-submit" in text]
    first, intro, *tail = said["2"].splitlines()
    assert first == "seal.py cannot work until a file or a setting is fixed; see the log of the task."
    assert (intro, tail) == ("Its last lines:", [f"line {number}" for number in range(11, 31)])
    assert said["20"] == "seal.py was blocked by the quality gate; see the log of the task."
    assert said["-9"].startswith("seal.py was killed by signal 9;")
    assert said["143"].startswith("seal.py ended with exit code 143;")
