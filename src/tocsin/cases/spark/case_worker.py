"""Serve runs of cases, and of detectors on files, one after the other, in one Spark session that stays warm."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from tocsin.cases.case_report import DetectorOutcome, TestReport, Way
from tocsin.cases.spark.case_broker import CaseBroker
from tocsin.cases.spark.case_run import CaseRun
from tocsin.cases.spark.file_run import run_on_file
from tocsin.cases.spark.mutant_run import run_mutants
from tocsin.cases.spark.real_time_way import RealTimeWay
from tocsin.cases.worker_link import FileReport, FileRequest, TestRequest, WorkerAnswer, WorkerPlace, WorkerRequest
from tocsin.model.errors import ConfigError, TocsinError
from tocsin.project.catalog import Catalog, read_catalog
from tocsin.project.settings import Settings, load_settings
from tocsin.provision.java import find_java
from tocsin.runtime import logs, private
from tocsin.runtime.lock import LockHeld, hold
from tocsin.runtime.process_exit import ExitCode
from tocsin.sparkjob.engine import jvm
from tocsin.sparkjob.failures import in_a_line
from tocsin.sparkjob.session import clean_scratch, streaming_session

IDLE_SECONDS = 600.0
_SLOTS = 16  # more than real-time mode holds for any plan that it takes, while each other way holds one
_JOB = "cases"


class CaseLab:
    """What runs of cases share: a Spark session and, for real-time mode, a broker.

    Attributes:
        is_warm: it has run before.
    """

    def __init__(self, folder: Path) -> None:
        """Start nothing yet; `folder` is for all files."""
        self._folder, self._runs = folder, 0
        self._spark: SparkSession | None = None
        self._broker = CaseBroker(folder / "kafka")
        self.is_warm = False

    def run(self, request: TestRequest) -> TestReport:
        """Run the cases of each detector; what is wrong with one is told of it alone.

        Raises:
            ConfigError: something is wrong with the project or the machine.
            TransientError: the broker does not start.
        """
        begin, was_warm = time.monotonic(), self.is_warm
        settings = load_settings(request.project)
        if Way.REAL_TIME in request.ways:
            self._broker.begin()  # it starts beside Spark
        spark = self._session(settings)
        catalog = read_catalog(settings.project)
        real_time = functools.partial(self._real_time, spark, settings)
        outcomes = [self._outcome((spark, catalog, name), request, real_time) for name in request.names]
        self.is_warm = True
        return TestReport(detectors=outcomes, seconds=time.monotonic() - begin, was_warm=was_warm)

    def run_on_file(self, request: FileRequest, tell: Callable[[str], object]) -> FileReport:
        """Run a detector on a file; `tell` is called now and then with how far it has come.

        Raises:
            ConfigError: something is wrong with the project, the detector or the file.
            TocsinError: a table that it joins cannot be had.
        """
        settings = load_settings(request.project)
        with self._run_folder() as folder:
            return run_on_file(self._session(settings), settings, request, folder, tell)

    def close(self) -> None:
        """End what was started."""
        if self._spark is not None:
            self._spark.stop()
            jvm.end()
        self._broker.close()

    def _outcome(
        self,
        detector: tuple[SparkSession, Catalog, str],
        request: TestRequest,
        real_time: Callable[[Path], RealTimeWay],
    ) -> DetectorOutcome:
        spark, catalog, name = detector
        try:
            with self._run_folder() as folder:
                run = CaseRun(spark, catalog, name, folder)
                if request.timelines:
                    run.add_timelines(request.timelines, request.seed)
                outcome = run.run(request.ways, lambda: real_time(folder))
                if request.mutate and outcome.is_well:
                    outcome.mutants = run_mutants(spark, catalog, run, folder)
                return outcome
        except ConfigError as error:
            return DetectorOutcome(detector=name, faults=[str(fault) for fault in error.faults])

    @contextmanager
    def _run_folder(self) -> Iterator[Path]:
        """Make a folder for the files of one run."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _real_time(self, spark: SparkSession, settings: Settings, folder: Path) -> RealTimeWay:
        return RealTimeWay(spark, settings, self._broker.settings(), folder)

    def _session(self, settings: Settings) -> SparkSession:
        if self._spark is None:
            os.environ["JAVA_HOME"] = str(find_java().home)
            own = settings.apart(self._folder / "state")
            clean_scratch(own, _JOB)
            self._spark = streaming_session(own, job=_JOB, slots=_SLOTS)
            self._spark.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "1000ms")
            # A watermark that moves would take another batch each time; ticks close the windows.
            self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        return self._spark


def serve(place: Path, *, once: bool) -> int:
    """Answer requests on the socket of `place` until there is none for a while, or `once`; returns the exit code."""
    os.umask(private.UMASK)
    logs.configure(_JOB)
    files = WorkerPlace(place.parent, place.name)
    try:
        lock = hold(files.lock)
    except LockHeld:
        return ExitCode.LOCKED
    with lock:
        shutil.rmtree(files.work, ignore_errors=True)
        files.socket.unlink(missing_ok=True)
        lab = CaseLab(files.work)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(files.socket))
            listener.listen()
            listener.settimeout(IDLE_SECONDS)
            try:
                while _answer_next(listener, lab) and not once:
                    pass
            finally:
                files.socket.unlink(missing_ok=True)
                lab.close()
                shutil.rmtree(files.work, ignore_errors=True)
    return ExitCode.OK


def _answer_next(listener: socket.socket, lab: CaseLab) -> bool:
    """Answer one request; False when this process should end."""
    try:
        link, _ = listener.accept()
    except TimeoutError:
        return False
    with link, link.makefile("rb") as lines:
        line = lines.readline()
        if not line or line.startswith(b'{"stop"'):
            return not line
        answered = threading.Event()
        threading.Thread(target=_end_with, args=(link, answered), daemon=True).start()
        answer = _answer(lab, line, lambda text: _send(link, WorkerAnswer(progress=text)))
        answered.set()
        _send(link, answer)
    return not answer.error


def _send(link: socket.socket, answer: WorkerAnswer) -> None:
    with suppress(OSError):  # whoever asked has gone
        link.sendall(answer.model_dump_json().encode() + b"\n")


def _answer(lab: CaseLab, line: bytes, tell: Callable[[str], object]) -> WorkerAnswer:
    try:
        request = WorkerRequest.model_validate_json(line)
        if request.file is not None:
            return WorkerAnswer(file=lab.run_on_file(request.file, tell))
        assert request.test is not None
        return WorkerAnswer(test=lab.run(request.test))
    except ConfigError as error:
        return WorkerAnswer(faults=list(error.faults))
    except TocsinError as error:
        return WorkerAnswer(error=str(error))
    except Exception as error:  # Spark or Java is gone: say so, and let the next run begin anew
        return WorkerAnswer(error=in_a_line(error))


def _end_with(link: socket.socket, answered: threading.Event) -> None:
    """End this process when the one that asked has gone before the answer: what runs may run for ever."""
    with suppress(OSError):
        if not link.recv(1, socket.MSG_PEEK) and not answered.is_set():
            jvm.kill()
            os._exit(ExitCode.FAILED)
