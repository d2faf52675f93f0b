"""A new version of a detector starts beside the one that runs and takes over from it, under load; and back again.

All tests share one job: each takes over from what the one before it left running.
"""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import DETECTOR, JOB, READY_SECONDS, DetectJob, Topic, detect_job
from tests.rig.waiting import await_that, patient, repeated
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.platform.code_versions import kept_versions
from tocsin.platform.heartbeat import read_beat
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.planning.desired_inputs import note_start

PLAN = "action = 'login failed'"
OTHER_PLAN = "action = 'login failed' AND length(user_id) > 0"
SCORE, NO_SCORE = 'alias("score")', 'alias("scores")'


def load(topic: Topic) -> contextlib.AbstractContextManager[None]:
    """Bursts around the limits, two a second, and ticks, until the end of the block."""
    counts, numbers = itertools.cycle((40, 50, 51, 100, 101, 130)), itertools.count()

    def burst() -> None:
        number = next(numbers)
        topic.burst(f"user{number}", next(counts), partition=number % 2)
        topic.tick(datetime.now(UTC))
        topic.flush()

    return repeated(burst, 0.5)


class Deployment:
    """The detect job, its file, and the process that leads."""

    def __init__(self, job: DetectJob) -> None:
        self.job, self.topic = job, job.make_topics()
        self.file = job.settings.project / "detectors" / f"{DETECTOR}.py"
        self.leading = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process that leads, and wait until it runs."""
        self.leading = self.job.start()
        self.job.await_report(lambda r: r.pid == self.leading.pid and r.state is JobState.RUNNING)
        return self.leading

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def start_beside(self) -> subprocess.Popen[bytes]:
        return self.job.start(DETECTOR, "--beside")

    def beside(self, new: subprocess.Popen[bytes], wanted: Callable[[JobReport], bool]) -> JobReport:
        """What `new` says of itself once that is `wanted`; meanwhile the other one leads."""
        seen: list[JobReport] = []

        def came() -> bool:
            beat = read_beat(self.job.settings.state, JOB, beside=True)
            seen[:] = [beat.report] if beat is not None and beat.report.pid == new.pid else []
            return bool(seen) and wanted(seen[0])

        await_that(lambda: came() or new.poll() is not None, READY_SECONDS)
        assert new.poll() is None, self.job.log.read_text()[-4000:]
        assert self.leading.poll() is None
        return seen[0]

    def replace(self, how: signal.Signals = signal.SIGTERM) -> subprocess.Popen[bytes]:
        """Start a process beside, end the leading one when the new one is ready, and wait until that one leads."""
        new = self.start_beside()
        self.beside(new, lambda r: r.state is JobState.READY)
        self.leading.send_signal(how)
        self.leading.wait(patient(30))
        self.job.await_report(lambda r: r.pid == new.pid and r.state is JobState.RUNNING)
        self.leading = new
        return new

    def version(self) -> str:
        return read_catalog(self.job.settings.project).detector(DETECTOR).version

    def versions(self) -> list[str]:
        return [one.version for one in kept_versions(self.job.settings, JOB)]

    def checkpoints(self) -> set[str]:
        return {path.parent.name for path in self.job.settings.checkpoint(JOB).glob("*/start.json")}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Deployment]:
    with detect_job(tmp_path_factory.mktemp("hand_over"), broker) as job:
        yield Deployment(job)


@pytest.fixture
def deployed(deployment: Deployment) -> Iterator[Deployment]:
    """The file is as it was before, and a process leads, whatever a test has done."""
    text = deployment.file.read_text()
    if deployment.leading.poll() is not None:
        deployment.start()
    yield deployment
    deployment.file.write_text(text)


def test_the_same_state_goes_over_from_a_process_that_is_killed_exactly(deployed: Deployment) -> None:
    before = deployed.checkpoints()
    with load(deployed.topic):
        deployed.replace(signal.SIGKILL)
    deployed.job.await_truth(deployed.topic.truth)
    assert deployed.checkpoints() == before, "no state was made anew"


@pytest.mark.long  # tests/spark/test_plan.py has the fingerprint, and tests/unit what a plan makes of it
def test_a_deploy_of_other_code_with_the_same_plan_is_known_to_keep_the_state(deployed: Deployment) -> None:
    """The plan that is made without Kafka has the fingerprint of the job's."""
    settings = deployed.job.settings
    note_start(settings.state, JOB, desired_jobs(read_catalog(settings.project), settings)[JOB])
    deployed.edit("failures = events", "failed = events")
    deployed.edit("return failures", "return failed")
    command = [sys.executable, "-m", "tocsin.cli", "plan", JOB, "--spark", "--json"]
    environment = deployed.job.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = json.loads(done.stdout)
    assert shown == {"job": JOB, "effect": "restart", "changed": ["code"]}


@pytest.mark.long
def test_another_plan_warms_up_beside_and_the_file_of_before_goes_on_from_its_own_state(deployed: Deployment) -> None:
    """While two versions run, and whichever is in force, each finding is there once, with its score."""
    before = deployed.checkpoints()
    with load(deployed.topic):
        first = deployed.version()
        deployed.edit(PLAN, OTHER_PLAN)
        deployed.replace()
        both = deployed.checkpoints()
        assert len(both) == len(before) + 1
        second = deployed.version()
        assert deployed.versions() == [first, second]

        deployed.edit(OTHER_PLAN, PLAN)
        deployed.replace()
        report = deployed.job.report()
        assert report is not None
        assert report.version == first

        deployed.edit(PLAN, OTHER_PLAN)
        deployed.replace()
        report = deployed.job.report()
        assert report is not None
        assert report.version == second
    deployed.job.await_truth(deployed.topic.truth)
    assert deployed.checkpoints() == both, "each version went on from its own"


def test_a_new_version_that_cannot_run_says_what_to_fix_and_leaves_the_old_one_in_peace(deployed: Deployment) -> None:
    log, versions = deployed.job.log, deployed.versions()
    before = len(log.read_text())
    with load(deployed.topic):
        deployed.edit(SCORE, NO_SCORE)
        new = deployed.start_beside()
        assert new.wait(patient(READY_SECONDS)) == 2, "misconfigured"
    said = log.read_text()[before:]
    assert "failed_logins.py: score: detect returns no column 'score'; did you mean 'scores'?" in said
    assert "Traceback" not in said
    assert deployed.leading.poll() is None
    deployed.job.await_truth(deployed.topic.truth)
    assert deployed.versions() == versions, "it never ran"
