"""What a job logs when it is asked to stop, or hands over: no error."""

import contextlib
import itertools
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import DETECTOR, JOB, READY_SECONDS, DetectJob, Topic, detect_job
from tests.rig.waiting import await_that, patient, repeated
from tocsin.declare.model.job_report import JobState
from tocsin.platform.heartbeat import read_beat

CHANGES = {
    "expect": {
        "from tocsin import ": "from tocsin import Entities, ",
        'window="10 seconds"': 'window="10 seconds", expect=Entities(["user1", "user2"], minimum=500)',
    },
}
STEP = '''"""Many failures of one user."""
from dataclasses import dataclass

from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Count:
    n: int = 0


@detector(source="logins", entity="user_id", window=None, forget_after="1 minute", levels=Levels(email=50, urgent=100),
          owner="security@example.com", runbook="docs/runbooks/failed_logins.md", stage="live")
def step(key: str, state: Count, event: Event) -> tuple[Count, list[StepFinding]]:
    return Count(state.n + 1), [StepFinding(60.0, {})] if state.n % 50 == 49 else []
'''


def load(topic: Topic) -> contextlib.AbstractContextManager[None]:
    numbers = itertools.count()

    def burst() -> None:
        number = next(numbers)
        topic.burst(f"user{number}", 40, partition=number % 2)
        topic.tick(datetime.now(UTC))
        topic.flush()

    return repeated(burst, 0.2)


def begin(job: DetectJob, *further: str) -> subprocess.Popen[bytes]:
    """Start a process, beside another one if `further` says so, and wait until it runs or is ready."""
    process = job.start(DETECTOR, *further)

    def is_there() -> bool:
        beat = read_beat(job.settings.state, JOB, beside=bool(further))
        report = None if beat is None else beat.report
        wanted = JobState.READY if further else JobState.RUNNING
        return report is not None and (report.pid, report.state) == (process.pid, wanted)

    await_that(lambda: is_there() or process.poll() is not None, READY_SECONDS)
    assert process.poll() is None, job.log.read_text()[-4000:]
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(patient(30)) == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["step", "expect"])
def test_a_job_that_hands_over_or_is_asked_to_stop_logs_no_error(tmp_path: Path, broker: Broker, kind: str) -> None:
    with detect_job(tmp_path, broker) as job:
        file = job.settings.project / "detectors" / f"{DETECTOR}.py"
        text = STEP if kind == "step" else file.read_text()
        for old, new in CHANGES.get(kind, {}).items():
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        topic = job.make_topics()
        with load(topic):
            leading = begin(job)
            for limit in (51, 52):
                file.write_text(text.replace("Levels(email=50", f"Levels(email={limit}"))
                following = begin(job, "--beside")
                time.sleep(limit % 5)  # somewhere in a batch
                stop(leading)
                leading = following
                job.await_report(lambda r: r.state is JobState.RUNNING and r.batch_id is not None)
            stop(leading)
        noise = [line for line in job.log.read_text().splitlines() if "level=error" in line or "Traceback" in line]
        assert noise == []
