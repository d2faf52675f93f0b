"""Detectors that harm the engine that they share with two others, and harm from outside: nothing of it spreads."""

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
import pytest

from tests.rig.detect_job import DetectJob, Topic, ticking
from tests.rig.harms import LEAKS, LOOPS, SupervisedJobs, detector
from tests.rig.installation import jvms_of
from tests.rig.observed import read_all
from tests.rig.waiting import await_that, awaited, repeated
from tocsin.declare.blocks.spark_settings import EngineSettings
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.platform.fork_server import short_path
from tocsin.spark.engine.attachment import Line, sockets
from tocsin.spark.engine.engine_job import _HAND_OVER_SECONDS
from tocsin.supervise.job_states import Condition, Timing

ENGINE, HARMFUL = "engine:live-1", "detector:harmful"
NEIGHBOURS = ("failed_logins", "second")
_CALM_SECONDS, _HARM_SECONDS = 20.0, 25.0
_EVERY_SECONDS, _EVENTS = 0.5, 51


@dataclass(frozen=True, kw_only=True)
class Harm:
    """What is done to an engine, and what must come of it.

    Attributes:
        file: of the harmful detector, which does harm at an event of mallory.
        act: is called once it has had that.
        told: the jobs of which people hear, each with words of the reason.
        is_over: asked until the harm is done, on top of the usual time.
        kills_engine: whether the engine ends, so that batches are repeated.
    """

    file: str = detector(harm="pass")
    act: Callable[[SupervisedJobs], None] = lambda _: None
    told: dict[str, str]
    is_over: Callable[[SupervisedJobs], object] = lambda _: True
    kills_engine: bool = False


def _matching(pattern: str, length: int) -> str:
    """A detector with a pattern that is found in no plan, where harmful ones are refused."""
    found = f'F.rlike(F.rpad("user_id", {length}, "a"), F.concat(F.lit("{pattern}"), F.substr("user_id", F.lit(99))))'
    return _score(f'{found}.cast("int")')


def _score(bad: str) -> str:
    """A detector whose score is `bad` for mallory, and 0 for others."""
    return detector(f"F.when(bad, {bad}).otherwise(0)")


def _restart(jobs: SupervisedJobs) -> None:
    time.sleep(5)
    assert jobs.supervisor.restart(HARMFUL)


def _signal(number: int, *, jvm_alone: bool = False) -> Callable[[SupervisedJobs], None]:
    def send(jobs: SupervisedJobs) -> None:
        (engine,) = (process.pid for process in jobs.runner.list() if process.labels.job == ENGINE)
        leader = psutil.Process(engine)
        for victim in jvms_of(leader) if jvm_alone else [*leader.children(recursive=True), leader]:
            os.kill(victim.pid, number)

    return send


def _has_said(words: str, job: str = HARMFUL) -> Callable[[SupervisedJobs], bool]:
    return lambda jobs: any(change.job == job and words in change.reason for change in jobs.changes)


def _is_isolated(jobs: SupervisedJobs) -> bool:
    report = jobs.report(HARMFUL)
    return report is not None and report.counts.get("isolated") == 1.0


def _stalled(jobs: SupervisedJobs) -> float:
    report = jobs.report(HARMFUL)
    return 0.0 if report is None else report.stalled_seconds


def _told(jobs: SupervisedJobs) -> dict[str, str]:
    """Of which jobs people hear, and why: what supervision says, and what their reports count."""
    told = {change.job: change.reason for change in jobs.changes if change.condition is not Condition.FINE}
    report = jobs.report(HARMFUL)
    return told | ({HARMFUL: report.reason} if report is not None and report.counts.get("set_aside") else {})


HARMS = {
    "stack": Harm(
        file=_matching("^(?:[a-z]|0)*$", 200_000),
        told={HARMFUL: "1 record was set aside"},
        is_over=lambda jobs: HARMFUL in _told(jobs),
    ),
    "heap": Harm(
        file=_score('F.size(F.transform(F.sequence(F.lit(0), F.lit(5000)), lambda _: F.repeat("user_id", 500_000)))'),
        told={ENGINE: "its heap ran out"},
        is_over=_is_isolated,
        kills_engine=True,
    ),
    "array": Harm(
        file=_score('F.length(F.repeat("user_id", 250_000_000))'),
        told={ENGINE: "its heap ran out"},
        is_over=_is_isolated,
        kills_engine=True,
    ),
    "pattern": Harm(
        file=_matching("^mallory(.*a){12}!$", 90),
        told={},
    ),
    "stopped_pattern": Harm(
        file=_matching("^mallory(.*a){12}!$", 90),
        act=_restart,
        told={ENGINE: f"tasks of {HARMFUL} have not ended within 30 s"},
        is_over=_is_isolated,
        kills_engine=True,
    ),
    "python_memory": Harm(
        file=detector(harm=LEAKS, declared='window=None, memory="900 MB"'),
        told={HARMFUL: " MB of 900 MB"},
        is_over=_has_said(" MB of 900 MB"),
    ),
    "stopped_loop": Harm(file=detector(harm=LOOPS), act=_restart, told={}),
    "state": Harm(
        file=detector(
            'events.withColumn("n", F.explode(F.sequence(F.lit(0), F.when(bad, 700_000).otherwise(0))))'
            '.withColumn("user_id", F.concat("user_id", F.col("n").cast("string"))).groupBy("window", "user_id")'
            '.agg((F.count("*") + F.length(F.max(F.rpad("user_id", 1_000, "x"))) * 0).alias("score"))',
            declared='window="1 hour"',
        ),
        told={},
        is_over=lambda jobs: jobs.past(HARMFUL).works and not _stalled(jobs),
    ),
    "code_generation": Harm(
        file=detector('F.coalesce(*[F.when(F.length("user_id") == n, F.lit(0)) for n in range(900)], F.lit(0))'),
        act=_restart,
        told={},
        is_over=lambda jobs: jobs.log(HARMFUL).count("query started") > 1,
    ),
    "stopped_engine": Harm(
        act=_signal(signal.SIGSTOP),
        told={ENGINE: "is hung: no heartbeat"},
        is_over=_has_said("is hung", ENGINE),
        kills_engine=True,
    ),
    "stopped_jvm": Harm(
        act=_signal(signal.SIGSTOP, jvm_alone=True),
        told={ENGINE: "is hung: no heartbeat"},
        is_over=_has_said("is hung", ENGINE),
        kills_engine=True,
    ),
    "killed_jvm": Harm(
        act=_signal(signal.SIGKILL, jvm_alone=True),
        told={ENGINE: "the JVM has ended"},
        is_over=_has_said("the JVM has ended", ENGINE),
        kills_engine=True,
    ),
}


class Load:
    """Bursts, each of a user of its own and above the limit; and how long their findings took."""

    def __init__(self, topic: Topic) -> None:
        self._topic, self.sent, self.is_over = topic, dict[str, float](), False

    def burst(self) -> None:
        if self.is_over:
            return
        user = f"user{len(self.sent)}"
        self._topic.burst(user, _EVENTS, len(self.sent) % 2)
        self.sent[user] = time.time()

    def milliseconds(self, job: DetectJob, name: str, since: float, until: float) -> str:
        """From the last event of a burst to the last version of its finding: median, and 95th percentile."""
        found: dict[str, float] = {}
        for record in read_all(job.settings, job.settings.names.findings):
            finding = Finding.from_record(record.value() or b"", "findings", 0, 0)
            if finding.detector == name:
                found[finding.entity["user_id"]] = record.timestamp()[1] / 1000
        took = [1000 * (found[user] - at) for user, at in self.sent.items() if since <= at < until and user in found]
        if len(took) < 2:
            return "-"
        return f"{median(took):.0f} / {quantiles(took, n=20)[-1]:.0f} ms of {len(took)}"


class Scene:
    """An engine with the jobs of two neighbours and perhaps a harmful one, under load."""

    def __init__(self, job: DetectJob, harmful: str = "") -> None:
        folder = job.settings.project / "detectors"
        (folder / "second.py").write_text((folder / "failed_logins.py").read_text())
        if harmful:
            (folder / "harmful.py").write_text(harmful.replace('runbook="r"', 'runbook="r", stage="live"'))
        self.detectors = [f"detector:{path.stem}" for path in folder.glob("*.py")]
        self._job, self.topic = job, job.make_topics()
        settings = job.settings.model_copy(update={"engine": EngineSettings(jobs=4)})
        self.jobs, self.load = SupervisedJobs(settings, Timing()), Load(self.topic)

    @contextmanager
    def running(self) -> Iterator[None]:
        """All run, and bursts come; people have been told nothing yet."""
        with self.jobs.running(), ticking(self.topic):
            await_that(self.all_run, 60, lambda: [self.jobs.log(each)[-2000:] for each in self.detectors])
            self.jobs.changes.clear()
            with repeated(self.load.burst, _EVERY_SECONDS):
                yield

    def all_run(self) -> bool:
        return all(self._runs(each) for each in self.detectors if each != HARMFUL)

    def _runs(self, job: str) -> bool:
        report = self.jobs.report(job)
        if report is None or report.batch_id is None:
            return False
        return report.state is JobState.RUNNING and not report.reason.startswith("catches up")

    def query_starts(self) -> list[int]:
        return [self.jobs.log(f"detector:{name}").count("query started") for name in NEIGHBOURS]

    def await_truth(self) -> None:
        """The findings of both neighbours are exact; no more load comes."""
        self.load.is_over = True
        time.sleep(2 * _EVERY_SECONDS)  # the last burst may be under way
        for name in NEIGHBOURS:
            awaited(lambda: len(self._findings(name)) >= len(self.topic.truth.expected()), 60)  # noqa: B023 - at once
            self.topic.truth.check(self._findings(name))

    def _findings(self, name: str) -> dict[str, Finding]:
        return {key: finding for key, finding in self._job.findings().items() if finding.detector == name}


@pytest.mark.long
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_harm_to_an_engine_does_not_spread(job: DetectJob, harm: Harm) -> None:
    scene = Scene(job, harm.file)
    jobs = scene.jobs
    with scene.running():
        before, marks = scene.query_starts(), [time.time()]
        time.sleep(_CALM_SECONDS)
        scene.topic.burst("mallory", 1)
        marks.append(time.time())
        harm.act(jobs)
        time.sleep(_HARM_SECONDS)
        await_that(lambda: harm.is_over(jobs), 200, lambda: f"{jobs.changes}\n{jobs.log(ENGINE)[-5000:]}")
        await_that(scene.all_run, 150)
        marks.append(time.time())
        time.sleep(_CALM_SECONDS)
        told = _told(jobs)
        for name in NEIGHBOURS:
            calm, harmed = (scene.load.milliseconds(job, name, *span) for span in itertools.pairwise(marks))
            print(f"{name}: {calm} before, {harmed} in the {marks[2] - marks[1]:.0f} s of harm")
        print(told)
        scene.await_truth()
    assert told.keys() - {HARMFUL} == harm.told.keys() - {HARMFUL}, "nobody hears of a neighbour"
    assert all(words in told[each] for each, words in harm.told.items())
    assert harm.kills_engine or scene.query_starts() == before, "a batch was repeated"


@pytest.mark.long
@pytest.mark.parametrize(
    ("block", "change", "least_seconds"),
    [("spark", {"latency": "1 s"}, 0), ("engine", {"heap_mb": 2200}, _HAND_OVER_SECONDS)],
    ids=["with_its_jobs", "without_them"],
)
def test_a_changed_engine_takes_over_when_the_old_one_has_no_jobs_or_after_a_time(
    job: DetectJob, block: str, change: dict[str, Any], least_seconds: float
) -> None:
    scene = Scene(job)
    jobs, seen = scene.jobs, set[float]()

    def engine() -> JobReport:
        report = jobs.report(ENGINE)
        assert report is not None
        return report

    def has_taken_over() -> bool:
        leading, beside = engine(), jobs.report(ENGINE, beside=True)
        if beside is not None and beside.state is JobState.READY and leading.pid == old:
            seen.add(leading.counts["jobs"])
        return leading.pid != old and scene.all_run()

    with scene.running():
        old, began = engine().pid, time.monotonic()
        assert engine().counts["jobs"] == 2
        jobs.settings = jobs.settings.model_copy(
            update={block: getattr(jobs.settings, block).model_copy(update=change)}
        )
        await_that(has_taken_over, 2 * _HAND_OVER_SECONDS)
        assert time.monotonic() - began > least_seconds
        time.sleep(_CALM_SECONDS)
        assert engine().counts["jobs"] == 2
        scene.await_truth()
    assert seen <= ({2.0} if least_seconds else {0.0})
    assert jobs.changes == [], "a hand-over is no failure"


@pytest.mark.long
def test_strangers_at_the_socket_keep_no_job_from_its_engine_and_secrets_are_seen_nowhere(job: DetectJob) -> None:
    """More connections than wait in a queue, none of which says whose it is; then one that gets a secret."""
    scene = Scene(job)
    jobs = scene.jobs
    with scene.running(), ExitStack() as strangers:
        (path,) = sockets(job.settings, "live")
        lines = [strangers.enter_context(closing(_connection(path))) for _ in range(300)]
        assert jobs.supervisor.restart("detector:second")
        await_that(lambda: jobs.log(ENGINE).count("job attached") > 2, 60)
        await_that(scene.all_run, 60)
        for line in lines:
            assert line.receive() is not None, "each is greeted"
        assert awaited(lambda: [line.receive() for line in lines] == [None] * len(lines), 60), "and ended after 30 s"
        stranger = strangers.enter_context(closing(_connection(path)))
        stranger.receive()
        stranger.send(job="detector:stranger", version="v")
        answer = stranger.receive()
        assert answer is not None
        seen = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
        logs = [file.read_text(errors="replace") for file in job.settings.log(ENGINE).parent.glob("*.log")]
        assert logs
        assert not [text for text in (*seen, *logs) if answer["secret"] in text]
        scene.await_truth()


def _connection(path: Path) -> Line:
    connection = socket.socket(socket.AF_UNIX)
    with short_path(path) as name:
        connection.connect(name)
    return Line(connection)
