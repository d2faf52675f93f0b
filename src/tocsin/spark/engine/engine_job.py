"""Run an engine: one JVM in which the queries of several jobs run, each in a session of its own.

Jobs stay processes of their own, and attach (`tocsin.spark.engine.attachment`). What ends one of them, kill -9
included, ends its connection, and the engine stops its queries. What ends the engine ends its connections, and its jobs
attach to the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import structlog
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import JobName
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform import fork_server
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.lock import Lock, LockHeld, hold
from tocsin.platform.process_exit import on_signals
from tocsin.spark.engine import jvm
from tocsin.spark.engine.attachment import SESSION, SESSION_LOCK, Line, engine_code
from tocsin.spark.engine.costs import Cost, Costs, write_costs
from tocsin.spark.engine.deaths import FOLDER, EngineMemory, is_of_another
from tocsin.spark.entry import offer_to_the_kernel
from tocsin.spark.session import EXHAUSTED, clean_scratch, engine_session, scratch_folder

_LOOK_SECONDS = 0.5
_COUNT_SECONDS = 15.0
_DECLARE_SECONDS = 30.0
_STOP_SECONDS = 30.0
_LEAVE_SECONDS = 6.0
_HAND_OVER_SECONDS = 300.0
_BLAME_SECONDS = 3.0
_TASK = re.compile(r"Executor task launch worker for task [^ ]+ in stage (\d+)\.")

log = structlog.get_logger()


class Engine:
    """The sessions of one JVM, each for one process of a job.

    Attributes:
        unfit: why this JVM must be replaced; empty while it need not.
    """

    def __init__(self, settings: Settings, name: str, spark: SparkSession) -> None:
        self._settings, self._spark, self._name = settings, spark, name
        self._greeting = {"engine": str(JobName("engine", name)), "code": engine_code(settings)}
        self._greeting["instance"] = settings.installation_id
        self._folder = settings.state / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._memory = EngineMemory(self._folder, name)
        self._costs, self._costs_file = Costs(spark), self._folder / f"{name}.{os.getpid()}.costs"
        self._sessions: dict[_Session, str] = {}
        self._taken = Cost()
        self._out_of_heap = set[str]()
        self._lock = threading.Lock()
        self.unfit = ""

    @property
    def jobs(self) -> int:
        """Count the processes that are attached, or whose queries have not ended yet."""
        return len(self._sessions)

    def taken(self) -> tuple[float, int]:
        """Return what the jobs have taken of the engine, as negative figures: their reports have it."""
        return -self._taken.cpu_seconds, -self._taken.rss_bytes

    def exhaust(self) -> None:
        """End because the heap has run out, after a moment in which the job says so whose task has failed for that."""
        threading.Timer(_BLAME_SECONDS, self._blame).start()

    def _blame(self) -> None:
        reason = "its heap ran out"
        if len(self._out_of_heap) == 1:  # of several any may have taken it
            self._memory.blame(next(iter(self._out_of_heap)), f"{reason} in a task of this job")
        self.unfit = reason

    def count_costs(self) -> None:
        """Write down what each session has taken."""
        with self._lock:
            sessions = list(self._sessions)
        workers = _workers()
        runs = {run: session.key for session in sessions for run in session.runs()}
        costs = self._costs.look(runs, {session.key: workers.get(session.key, []) for session in sessions})
        self._taken = Cost(self._costs.cpu_seconds, sum(cost.rss_bytes for cost in costs.values()))
        with contextlib.suppress(OSError):
            write_costs(self._costs_file, costs)

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Let processes of this user attach within the block."""
        for left in (*self._folder.glob("*.sock"), *self._folder.glob("*.costs")):
            if not is_of_another(left):
                left.unlink(missing_ok=True)
        path = self._folder / f"{self._name}.{os.getpid()}.sock"
        server = fork_server.listen(path)
        signal.signal(EXHAUSTED, lambda *_: self.exhaust())
        threading.Thread(target=self._accept, args=(server,), name="engine", daemon=True).start()
        try:
            yield
            self._memory.ended()
        finally:
            path.unlink(missing_ok=True)
            self._costs_file.unlink(missing_ok=True)
            server.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._serve, args=(connection,), name="attached", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Serve one process of a job until its connection ends."""
        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        connection.settimeout(_DECLARE_SECONDS)
        with contextlib.closing(Line(connection)) as line:
            try:
                if user != os.getuid():
                    log.warning("connection refused", of=f"user {user}", pid=pid)
                    return
                line.send(**self._greeting, jobs=self.jobs)
                declared = line.receive()
                if declared is not None:  # else it has chosen another engine
                    self._attach(line, str(declared["job"]), str(declared["version"]), pid)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("connection ended", pid=pid, error=str(error) or type(error).__name__)

    def _attach(self, line: Line, job: str, version: str, pid: int) -> None:
        session, claims = _Session(self._spark), list[Lock]()
        self._sessions[session] = job
        try:
            with self._lock:
                self._memory.attached(job, version)
            log.info("job attached", of=job, pid=pid)
            costs = str(self._costs_file)
            line.send(port=session.port, secret=session.secret, session=session.key, costs=costs)
            line.connection.settimeout(None)
            while (asked := line.receive()) is not None:
                if "claim" in asked:
                    line.send(held=not _claim(claims, Path(asked["claim"])))
                elif "run" in asked:
                    session.started.add(str(asked["run"]))
                else:
                    self._out_of_heap.add(job)
        finally:
            self._end(session, job)
            if not self.unfit:  # else its tasks may still write
                for lock in claims:
                    lock.release()
                with self._lock:
                    del self._sessions[session]
                    if job not in self._sessions.values():
                        self._memory.detached(job)

    def _end(self, session: _Session, job: str) -> None:
        began = time.monotonic()
        try:
            has_ended = session.end()
        except Exception as error:  # the JVM has ended, or is unable to go on
            self.unfit = self.unfit or f"the session of {job} could not be ended: {str(error)[:500]}"
            return
        log.info("job detached", of=job, seconds=round(time.monotonic() - began, 2))
        if not has_ended:
            self.unfit = f"tasks of {job} have not ended within {_STOP_SECONDS:.0f} s"
            self._memory.blame(job, self.unfit)


class _Session:
    """A session of the JVM with a Py4J server of its own, by which one process reaches it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._java = spark, cast(Any, spark._jvm)
        self._server = self._java.org.apache.spark.api.python.Py4JServer(spark.sparkContext._jsc.sc().conf())
        self._server.start()
        self.port, self.secret = int(self._server.getListeningPort()), str(self._server.secret())
        self._session = spark._jsparkSession.newSession()
        self.started = set[str]()  # runs, also those that the process has stopped by itself: their tasks may go on
        # The one place that all Py4J servers of a JVM see.
        self.key = f"tocsin.session.{uuid.uuid4().hex}"
        self._java.java.lang.System.getProperties().put(self.key, self._session)

    def end(self) -> bool:
        """Stop all that runs in the session, and wait for its tasks; returns whether they have ended in time."""
        self._java.java.lang.System.getProperties().remove(self.key)
        self._server.shutdown()  # first: what no longer reaches it starts nothing
        streams, runs = self._session.streams(), {*self.started, *self.runs()}
        for listener in streams.listListeners():
            streams.removeListener(listener)
        deadline = time.monotonic() + _STOP_SECONDS
        while (active := list(streams.active())) and time.monotonic() < deadline:
            for query in active:
                with contextlib.suppress(Py4JJavaError):  # its thread plans or compiles, and has not noticed in time
                    query.stop()
        self._session.interruptAll()
        for worker in _workers().get(
            self.key, []
        ):  # none of another process runs in them, so none would use them again
            with contextlib.suppress(psutil.Error):
                worker.kill()
        stages = self._stages(runs) if self._busy_stages() else set()
        while (left := stages & self._busy_stages()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not (left or active)

    def runs(self) -> list[str]:
        """List the ids of the runs of its queries."""
        return [str(query.runId()) for query in self._session.streams().active()]

    def _stages(self, runs: Iterable[str]) -> set[int]:
        """List the stages of `runs`, and of what no query ran, such as a batch."""
        tracker = self._spark.sparkContext.statusTracker()
        found = {job for run in runs for job in tracker.getJobIdsForGroup(run)}
        java = self._java.org.apache.spark.SparkContext.getOrCreate().statusTracker()
        found |= set(java.getJobIdsForTag(self._session.sessionJobTag()))
        return {int(stage) for info in map(tracker.getJobInfo, found) if info for stage in info.stageIds}

    def _busy_stages(self) -> set[int]:
        """The stages of which a task still has its thread: Spark counts a task as ended when it has asked it to."""
        threads = str(self._java.java.lang.Thread.getAllStackTraces().keySet().toString())
        return {int(stage) for stage in _TASK.findall(threads)}


def _workers() -> dict[str, list[psutil.Process]]:
    """List the Python processes that work for sessions, by session."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.Process(jvm.process_id()).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if session := process.environ().get(SESSION):
                found.setdefault(session, []).append(process)
    return found


def _claim(claims: list[Lock], folder: Path) -> bool:
    """Take the lock that lets one session write the checkpoint in `folder`, for as long as its queries run."""
    path = folder / SESSION_LOCK
    if any(lock.path == path for lock in claims):
        return True
    try:
        claims.append(hold(path))
    except LockHeld:
        return False
    return True


def run(job: Job) -> None:
    """Run the engine `job.name` until it is asked to stop, or its JVM ends.

    Raises a RuntimeError then: a restart helps.
    """
    offer_to_the_kernel()
    settings, reporter, name = job.settings, job.reporter, str(JobName("engine", job.name))
    job.kill = jvm.kill
    reporter.expect_batches(jvm.await_answer)
    clean_scratch(settings, name)
    spark = engine_session(settings, name, settings.latency_of(job.name.rpartition("-")[0]))
    jvm.halt_at_end()
    on_signals(job.stop)  # Spark has put its own handler in place
    engine = Engine(settings, job.name, spark)
    reporter.add_usage(engine.taken)
    try:
        with engine.listen():
            _watch(job, engine)
            deadline = time.monotonic() + _LEAVE_SECONDS  # its jobs may have been asked to stop, too
            while engine.jobs and time.monotonic() < deadline:
                time.sleep(0.1)
    finally:
        reporter.update(state=JobState.STOPPING, reason="")
        jvm.end()
        shutil.rmtree(scratch_folder(settings, name), ignore_errors=True)


def _watch(job: Job, engine: Engine) -> None:
    """Report until the job is asked to stop. One that takes over says so when the other has no jobs any more."""
    began, name = time.monotonic(), str(JobName("engine", job.name))
    last, counted_at = dict[str, Any](), began
    while not job.stop.wait(_LOOK_SECONDS):
        if not jvm.is_alive():
            raise RuntimeError("the JVM has ended")
        if engine.unfit:
            raise RuntimeError(engine.unfit)
        if time.monotonic() - counted_at > _COUNT_SECONDS:
            counted_at = time.monotonic()
            engine.count_costs()
            # Its workers belong to the jobs, which supervision stops at limits of their own.
            taken, allowed = job.reporter.report().rss_bytes / 1e6, job.settings.engine.most_mb
            if taken > allowed:
                raise RuntimeError(f"memory limit: takes {taken:.0f} MB of {allowed} MB, without its jobs' workers")
        before = None if job.reporter.leads else read_beat(job.settings.state, name)
        waits = (
            before is not None and before.report.counts.get("jobs") and time.monotonic() - began < _HAND_OVER_SECONDS
        )
        state, reason = (JobState.STARTING, f"{name} before it still has jobs") if waits else (JobState.RUNNING, "")
        found = {"state": state, "reason": reason, "counts": {"jobs": float(engine.jobs)}}
        if found != last:
            last = found
            job.reporter.update(**found)
