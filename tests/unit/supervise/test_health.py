"""One judgement of a job for `tocsin status`, the stack, the pages and the tasks; see also the tests of the pages."""

from datetime import UTC, datetime

import pytest

from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.platform.heartbeat import Beat
from tocsin.supervise.job_states import Condition, Past
from tocsin.supervise.job_status import JobFacts, Severity, health
from tocsin.supervise.runners.runner import Labels, Process

PROCESS = Process(Labels("shop-1", "notifier", "v1"), 7, 900.0)


def beat(state: JobState, age: float = 1.0, reason: str = "", pid: int = 7) -> Beat:
    return Beat(JobReport(job="notifier", at=datetime.now(UTC), pid=pid, state=state, reason=reason), age)


@pytest.mark.parametrize(
    ("processes", "standing"), [((PROCESS,), Severity.WARNING), (None, Severity.PROBLEM), ((), Severity.WARNING)]
)
def test_a_job_that_has_stopped_is_a_problem_unless_its_process_is_about_to_end_or_to_be_started(
    processes: tuple[Process, ...] | None, standing: Severity
) -> None:
    assert health(JobFacts(at=1000, processes=processes, beat=beat(JobState.STOPPED))).severity is standing


@pytest.mark.parametrize(
    ("started_at", "said", "word"),
    [(998, JobState.RUNNING, "starting"), (990, JobState.RUNNING, "gone"), (990, JobState.STOPPED, "stopped")],
)
def test_a_process_that_is_not_there_was_just_started_has_stopped_or_is_gone(
    started_at: float, said: JobState, word: str
) -> None:
    past = Past(expected=True, started_at=started_at)
    assert health(JobFacts(at=1000, beat=beat(said), past=past)).word == word


@pytest.mark.parametrize("processes", [(PROCESS,), ()])
def test_a_broken_file_is_a_problem_whether_its_job_runs_or_not(processes: tuple[Process, ...]) -> None:
    found = health(JobFacts(at=1000, faults=["x.py:1: is not Python"], processes=processes))
    assert (found.severity, found.word) == (Severity.PROBLEM, "broken")


@pytest.mark.parametrize(
    ("looked", "verdict"), [(90.0, (Severity.WARNING, "restarting")), (420.0, (Severity.PROBLEM, "down"))]
)
def test_a_job_that_nobody_restarts_is_down(looked: float, verdict: tuple[Severity, str]) -> None:
    past = Past(condition=Condition.RESTARTING, reason="was killed by signal 9 (SIGKILL)")
    found = health(JobFacts(at=1000, beat=beat(JobState.RUNNING), past=past, looked_seconds=looked))
    assert (found.severity, found.word) == verdict
    assert "has not looked at the jobs for 7 min" in found.reason or looked < 120


@pytest.mark.parametrize(
    ("state", "batch", "lag", "unproven"),
    [
        (JobState.RUNNING, None, 10, True),
        (JobState.DRAINING, 3, 10, False),
        (JobState.RUNNING, None, 0, False),
        (JobState.READY, None, 0, False),
        (JobState.WAITING, 3, 0, True),
        (JobState.STARTING, None, 0, True),
    ],
)
def test_a_job_gets_on_once_it_has_finished_a_batch_or_has_none_to_do(
    state: JobState, batch: int | None, lag: int, unproven: bool
) -> None:
    report = JobReport(job="ingest:logins", at=datetime.now(UTC), state=state, batch_id=batch, lag_records=lag)
    assert report.is_unproven is unproven


def test_what_supervision_remembers_says_more_than_the_job() -> None:
    past = Past(spec="v1", condition=Condition.CRASH_LOOP, reason="4 failures")
    found = health(JobFacts(at=1000, processes=[PROCESS], beat=beat(JobState.RUNNING), past=past))
    assert (found.severity, found.word) == (Severity.PROBLEM, "crash loop")
    assert found.reason == "4 failures. Retrying"


def test_a_wait_of_ten_minutes_is_a_problem() -> None:
    report = beat(JobState.WAITING, reason="Kafka does not answer").report
    for seconds, standing in ((599.0, Severity.WARNING), (600.0, Severity.PROBLEM)):
        waiting = Beat(report.model_copy(update={"waiting_seconds": seconds}), 1.0)
        found = health(JobFacts(at=1000, processes=[PROCESS], beat=waiting))
        assert (found.severity, found.word) == (standing, "waiting")
    assert found.reason == "for 10 min: Kafka does not answer"


def test_a_server_gives_no_sign_of_life() -> None:
    assert health(JobFacts(at=1000, processes=[PROCESS], beats=False)).severity is Severity.OK
    assert health(JobFacts(at=1000, processes=[], beats=False)).severity is not Severity.OK


def test_a_process_beside_the_one_that_leads_is_well_and_says_what_it_waits_for() -> None:
    reason = "resumes the running version's checkpoint"
    own, elsewhere = beat(JobState.READY, reason=reason), beat(JobState.RUNNING, pid=77)
    found = health(JobFacts(at=1000, processes=[PROCESS], beat=elsewhere, beside=own))
    assert (found.severity, found.word, found.reason) == (Severity.OK, "ready", reason)
