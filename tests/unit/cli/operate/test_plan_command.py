"""What a deploy would do, told without Kafka and without Spark, from what the jobs were started with."""

import json
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tocsin.cli.json_shapes import JobPlanShape
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import load_settings
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.planning.desired_inputs import note_start

DETECTOR, INGEST = "detector:failed_logins", "ingest:logins"
VIEW = '''"""Logins of each user."""
from pyspark.sql import functions as F
from tocsin import view


@view(source="logins", key="user_id", window="10 seconds", owner="a@example.com", stage="live")
def view(events):
    return events.groupBy("window", "user_id").agg(F.count("*").alias("count"))
'''
ASK = "which it is, only Spark's plan tells: tocsin plan --spark\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_project(tmp_path)
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "logins_of.py").write_text(VIEW)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    return tmp_path


@pytest.fixture
def ran(project: Path) -> Path:
    settings = load_settings()
    for job, wanted in desired_jobs(read_catalog(settings.project), settings).items():
        note_start(settings.state, job, wanted)
    return project


def plan(*words: str) -> dict[str, tuple[str, list[str]]]:
    done = invoke(["plan", "--json", *words])
    shown = json.loads(done.stdout)
    asks = any(one["effect"] == "restart or new state" for one in shown)
    assert (done.exit_code, done.stderr) == (0, ASK if asks else "")
    assert all(one.keys() == JobPlanShape.model_fields.keys() for one in shown)
    return {one["job"]: (one["effect"], one["changed"]) for one in shown}


def edit(project: Path, old: str, new: str, name: str = "detectors/failed_logins.py") -> None:
    text = (project / name).read_text()
    assert old in text
    (project / name).write_text(text.replace(old, new))


def test_where_nothing_ever_ran_all_jobs_start(project: Path) -> None:
    told = plan()
    assert {job for job, (effect, _) in told.items() if effect == "start"} == told.keys()
    assert told[DETECTOR] == ("start", [])
    assert not (project / ".tocsin").exists(), "nothing is written"


def test_the_same_files_do_nothing(ran: Path) -> None:
    assert all(one == ("nothing", []) for one in plan().values())
    shown = invoke(["plan", DETECTOR]).stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [[DETECTOR, "nothing"]]


CHANGES = {
    'window="10 seconds"->window="20 seconds"': ("new state", ["declared.window"]),
    "email=50->email=60": ("restart", ["declared.levels"]),
    "'login failed'->'login denied'": ("restart or new state", ["code"]),
    "Bursts of failed->Floods of failed": ("nothing", []),
    "security@example.com->other@example.com": ("nothing", []),
    'runbook="docs/->runbook="more/': ("nothing", []),
    'stage="live"->stage="shadow"': ("restart", ["engine.pool"]),
    'stage="live"->stage="live", memory="900 MB"': ("nothing", []),
    'stage="live"->stage="retired"': ("nothing", ["declared.stage"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_detector_is_named_with_its_effect_and_concerns_it_alone(ran: Path, change: str) -> None:
    edit(ran, *change.split("->"))
    told = plan()
    assert told.pop(DETECTOR) == CHANGES[change]
    told.pop("engine:shadow-1", None)  # where it is needed now
    assert {effect for effect, _ in told.values()} == {"nothing"}
    assert [name for _, names in told.values() for name in names] == []


def test_settings_that_no_query_reads_restart_nothing_but_who_uses_them(ran: Path) -> None:
    (ran / "tocsin.toml").write_text("[alerts]\nhistory_days = 500\n\n[conditions]\nlag = '9 minutes'\n")
    restarted = {job for job, (effect, _) in plan().items() if effect != "nothing"}
    assert restarted == {"notifier"}, "it removes old findings"


def test_a_source_concerns_the_jobs_that_read_it(ran: Path) -> None:
    edit(ran, 'lateness = "10 seconds"', 'lateness = "20 seconds"', "sources/logins.toml")
    changed = "source logins.lateness"
    told = plan()
    assert told[DETECTOR] == told["compute:logins_of"] == ("restart", [changed])
    assert told[INGEST] == ("restart", [changed, "source logins.max_ahead"])
    assert told["indexer"][0] == "nothing"
    edit(ran, "[schema]", '[schema]\ncountry = "string"', "sources/logins.toml")
    assert plan()[DETECTOR] == ("restart or new state", [changed, "source logins.columns"])


def test_a_setting_is_told_by_its_name(ran: Path) -> None:
    (ran / "tocsin.toml").write_text("[spark]\nshuffle_partitions = 2\n")
    told = plan()
    assert told[DETECTOR][1] == ["spark.shuffle_partitions"]
    assert (told[DETECTOR][0], told[INGEST][0], told["indexer"][0]) == ("new state", "restart", "nothing")


def test_a_changed_view_is_computed_anew_and_its_sink_keeps_its_place(ran: Path) -> None:
    edit(ran, 'F.count("*")', 'F.max("event_time")', "views/logins_of.py")
    told = plan()
    assert told["compute:logins_of"] == ("new state", ["code"])
    assert told["view:logins_of"] == ("nothing", [])


def test_a_broken_file_is_refused_and_one_that_is_gone_is_told_while_its_job_runs(ran: Path) -> None:
    (ran / "detectors" / "failed_logins.py").write_text("def (")
    effect, (fault,) = plan()[DETECTOR]
    assert effect == "refused"
    assert fault.startswith("detectors/failed_logins.py:1: is not Python")
    with pytest.raises(ConfigError, match="did you mean 'detector:failed_logins'"):
        invoke(["plan", "detector:failed_login"], catch_exceptions=False)


def test_what_was_started_before_starts_were_recorded_is_told_as_that(ran: Path) -> None:
    memory = ran / ".tocsin" / "state" / "supervision" / "jobs.json"
    memory.write_text(json.dumps({"jobs": {DETECTOR: {"spec": "old"}}}))
    assert plan()[DETECTOR] == ("restart or new state", [])
