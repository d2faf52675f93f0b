"""Whose state fits, where Spark has made the plans; and what becomes of jobs that run. Pure: all is handed in."""

import shutil
import time
from pathlib import Path

import pytest

from tests.rig.samples.project import ROOT, copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_status import look
from tocsin.supervise.planning.deploy_plan import Deploy, Effect, JobPlan, StateNames, plan_job
from tocsin.supervise.planning.desired_inputs import StartRecord
from tocsin.supervise.runners.runner import Labels, Process

JOB = "detector:failed_logins"


def deploy(project: Path, old: str, new: str, *, states: StateNames | None = None, stopped: bool = False) -> JobPlan:
    """Plan an edit of a detector that runs, and ran in two versions: the running one is not the last started."""
    copy_project(project)
    return edited(project, project / "detectors" / "failed_logins.py", (old, new), states=states, stopped=stopped)


def edited(
    project: Path, path: Path, change: tuple[str, str], *, states: StateNames | None = None, stopped: bool = False
) -> JobPlan:
    (old, new), job = change, f"{path.parent.name.removesuffix('s')}:{path.stem}"
    settings = Settings(project=project, state=project / "state")
    ran = desired_jobs(read_catalog(project), settings)[job]
    path.write_text(path.read_text().replace(old, new))
    catalog = read_catalog(project)
    desired = desired_jobs(catalog, settings)
    starts = [StartRecord(spec=ran.spec, at=1.0, inputs=dict(ran.inputs))]
    process = Process(Labels("i", job, ran.spec), 7, time.time(), leader=True)
    return plan_job(
        Deploy(
            desired=desired,
            stopped=frozenset([job] if stopped else []),
            starts={job: [*starts, StartRecord(spec="failing", at=2.0)]},
            snapshot=look(settings, catalog, [process]),
            states=states,
        ),
        job,
    )


FILTER = ("'login failed'", "'login denied'")


@pytest.mark.parametrize(
    ("fingerprint", "effect"), [("same", Effect.RESTART), ("older", Effect.RESTART), ("other", Effect.NEW_STATE)]
)
def test_the_fingerprint_of_the_plan_tells_whose_state_fits(tmp_path: Path, fingerprint: str, effect: Effect) -> None:
    states = StateNames(next={JOB: fingerprint}, present={JOB: frozenset(["same", "older"])})
    assert deploy(tmp_path, *FILTER, states=states) == JobPlan(job=JOB, effect=effect, changed=["code"])


def test_of_what_joins_tables_no_plan_without_their_rows_tells(tmp_path: Path) -> None:
    planned = deploy(tmp_path, *FILTER, states=StateNames())
    assert (planned.effect, planned.changed) == (Effect.RESTART_OR_NEW, ["code"])


def test_a_flow_goes_on_where_it_stopped_once_its_next_version_is_ready(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "words", tmp_path, dirs_exist_ok=True)
    planned = edited(tmp_path, tmp_path / "flows" / "words.py", ("word != ''", "word != 'a'"))
    assert (planned.effect, planned.changed) == (Effect.RESTART, ["code"])


def test_what_spark_refuses_is_not_deployed(tmp_path: Path) -> None:
    states = StateNames(faults={JOB: ["detectors/failed_logins.py: detect: Spark refuses its plan"]})
    planned = deploy(tmp_path, *FILTER, states=states)
    assert planned.effect is Effect.REFUSED
    assert planned.changed == ["detectors/failed_logins.py: detect: Spark refuses its plan"]


def test_jobs_that_should_not_run_are_stopped_with_the_reason(tmp_path: Path) -> None:
    retired = deploy(tmp_path, 'stage="live"', 'stage="retired"')
    assert (retired.effect, retired.changed) == (Effect.STOP, ["declared.stage"])
    paused = deploy(tmp_path, "x", "x", stopped=True)
    assert (paused.effect, paused.changed) == (Effect.STOP, ["switch"])
