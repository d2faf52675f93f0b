"""Detectors that harm what runs them, and the jobs of a project under a supervisor that notes what it tells people."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.rig.waiting import await_that
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import read_beat
from tocsin.setup.java import find_java
from tocsin.supervise.installed_jobs import job_launch
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Action, Change, Past, Start, Timing, memory_of, read_history
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.log_files import rotate
from tocsin.supervise.runners.runner import Labels, Launch, instance_of
from tocsin.supervise.supervisor import JobGroup, Supervisor

_DETECTOR = '''"""Harms what runs it."""
import sys
from pyspark.sql import functions as F

from tocsin import Levels, detector


def harm(user):
    {harm}
    return 0


@detector(source="logins", entity="user_id", levels=Levels(email=50), owner="a@example.com", runbook="r", {declared})
def detect(events):
    bad = F.col("user_id") == "mallory"
    return {rows}
'''
LOOPS = "while user == 'mallory': pass"
# In another module, as a library's cache is: what the detector's own keeps, Spark drops at the end of each task.
LEAKS = "vars(sys).setdefault('kept', []).extend(b'x' * 20_000_000 for _ in range(100 * (user == 'mallory')))"
FLOODS = "[sys.stderr.write('x' * 99_999 + chr(10)) for _ in range(10_000 if user == 'mallory' else 0)]"
HARM_LINE = _DETECTOR.splitlines().index("    {harm}") + 1
_JOBS = ("engine", "detector")


def detector(rows: str = 'F.udf(harm, "int")("user_id")', *, harm: str = "pass", declared: str = "window=None") -> str:
    """A file whose detector computes `rows`, or those with that score, and does harm at an event of mallory."""
    rows = rows if rows.startswith("events.") else f'events.withColumn("score", {rows})'
    return _DETECTOR.format(rows=rows, harm=harm, declared=declared)


class SupervisedJobs:
    """The detectors of one project, and their engines, under a supervisor.

    Attributes:
        changes: what it has said of them, in order.
    """

    def __init__(self, settings: Settings, timing: Timing) -> None:
        self.settings, self.changes = settings, list[Change]()
        self.runner = LocalRunner(instance_of(settings), settings.log)
        group = JobGroup(name="jobs", state=settings.state, launch=self._launch, timing=timing)
        self.supervisor = Supervisor(group, self.runner)
        self._stop = threading.Event()

    def _launch(self, start: Start) -> Launch:
        labels = Labels(instance_of(self.settings), start.job, start.spec)
        return job_launch(self.settings, labels, find_java().home, beside=start.beside)

    def past(self, job: str) -> Past:
        return read_history(memory_of(self.settings.state, "jobs")).jobs.get(job, Past())

    def report(self, job: str, *, beside: bool = False) -> JobReport | None:
        beat = read_beat(self.settings.state, job, beside=beside)
        return None if beat is None else beat.report

    def log(self, job: str) -> str:
        path = self.settings.log(job)
        return path.read_text(errors="replace") if path.exists() else ""

    def _supervise(self) -> None:
        while not self._stop.wait(1.0):
            every = desired_jobs(read_catalog(self.settings.project), self.settings)
            desired = {job: wanted for job, wanted in every.items() if job.partition(":")[0] in _JOBS}
            actions: list[Action] = self.supervisor.tick(desired)
            self.changes += [action for action in actions if isinstance(action, Change)]
            for job in desired:
                rotate(self.settings.log(job))

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._supervise, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            for process in self.runner.list():
                self.runner.stop(process, force=True)
            await_that(lambda: not self.runner.list(), 20)
