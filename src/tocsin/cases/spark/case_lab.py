"""Run cases of detectors, and detectors on files, in one Spark session."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tocsin.cases.case_report import DetectorOutcome, FileReport, FileRequest, MutantOutcome, TestReport, Way, is_met
from tocsin.cases.mutation import mutants_of
from tocsin.cases.spark.case_query import CaseQuery
from tocsin.cases.spark.case_run import CaseRun
from tocsin.cases.spark.stream_ways import RealTimeWay
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.code.own_modules import carrying, code_of
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.servers.kafka_server import temporary_broker
from tocsin.dev.servers.ports import accepts
from tocsin.job import exit_code_of
from tocsin.platform import logs, state_file
from tocsin.platform.failures import in_a_line
from tocsin.platform.process_exit import ExitCode
from tocsin.setup.java import find_java
from tocsin.spark.engine import jvm
from tocsin.spark.engine.attachment import Attachment, engine_code
from tocsin.spark.engine.warm_engine import attach_or_start, run_until_idle
from tocsin.spark.session import clean_scratch, engine_session, redirect_output, streaming_session

_SLOTS = 16  # more than real-time mode holds for any plan that it takes, while each other way holds one


class CaseLab:
    """What runs of cases share: a Spark session and, for real-time mode, a broker. Both start with the first run."""

    def __init__(self, folder: Path, *, shares: bool = False) -> None:
        """Start nothing yet; `folder` is for all files, and the caller's to remove.

        If it `shares`, session and broker are of the engine that runs of cases share, where the settings have engines.
        """
        self._folder, self._runs, self._shares = folder, 0, shares
        self._spark: SparkSession | None = None
        self._engine: CaseEngine | None = None
        self._broker = CaseBroker(folder / "kafka")

    def run(self, settings: Settings, names: Sequence[str], ways: Sequence[Way], *, mutate: bool = False) -> TestReport:
        """Run the cases of each detector, and with `mutate` those of its mutants; a fault is reported of its detector.

        Raises:
            ConfigError: something is wrong with the project or the machine.
            TransientError: the broker does not start, or Spark has ended.
        """
        begin = time.monotonic()
        with _in_a_line():
            if self._spark is None and self._shares:
                self._attach(settings)
            if Way.REAL_TIME in ways and self._engine is None:
                self._broker.begin()  # it starts beside Spark
            catalog, outcomes = read_catalog(settings.project), list[DetectorOutcome]()
            outcomes += [self._outcome(settings, catalog, name, (ways, mutate)) for name in names]
        return TestReport(detectors=outcomes, seconds=time.monotonic() - begin)

    def run_on_file(self, settings: Settings, request: FileRequest, tell: Callable[[str], object]) -> FileReport:
        """Run a detector on a file; `tell` is called now and then with how far it has come.

        Raises:
            ConfigError: something is wrong with the project, the detector or the file.
            TocsinError: a table that it joins cannot be had, or Spark has ended.
        """
        from tocsin.cases.spark.file_run import run_on_file  # noqa: PLC0415 - it takes half of the imports of cases

        with _in_a_line():
            return run_on_file(self._session(settings), settings, request, self._run_folder(), tell)

    def close(self) -> None:
        """End what was started, and leave what is shared."""
        if self._engine is not None:
            self._engine.attachment.close()
        elif self._spark is not None:
            self._spark.stop()
            jvm.end()
        self._broker.close()

    def _attach(self, settings: Settings) -> None:
        if settings.engine.enabled and SparkContext._active_spark_context is None:
            with contextlib.suppress(TransientError, OSError):  # a session of one's own says what is wrong, if it is
                self._engine = CaseEngine(settings)

    def _kafka(self) -> KafkaSettings:
        return (self._engine and self._engine.broker()) or self._broker.settings()

    def _outcome(
        self, settings: Settings, catalog: Catalog, name: str, asked: tuple[Sequence[Way], bool]
    ) -> DetectorOutcome:
        """Run the cases of a detector; once more, alone, if the engine has ended meanwhile, for whatever reason."""
        try:
            outcome = self._attempt(settings, catalog, name, asked)
            if outcome.is_well or not self._leave_ended():
                return outcome
        except Exception:
            if not self._leave_ended():
                raise
        return self._attempt(settings, catalog, name, asked)

    def _leave_ended(self) -> bool:
        if self._engine is None or not self._engine.has_ended():
            return False
        self._engine.attachment.close()
        self._engine = self._spark = None
        return True

    def _attempt(
        self, settings: Settings, catalog: Catalog, name: str, asked: tuple[Sequence[Way], bool]
    ) -> DetectorOutcome:
        spark, (ways, mutate) = self._session(settings), asked
        try:
            folder = self._run_folder()
            run = CaseRun(spark, catalog, name, folder)
            outcome = run.run(ways, lambda: RealTimeWay(spark, settings, self._kafka(), folder))
            if mutate and outcome.is_well:
                outcome.mutants = run_mutants(spark, catalog, run, folder)
            return outcome
        except ConfigError as error:
            return DetectorOutcome(detector=name, faults=[str(fault) for fault in error.faults])

    def _run_folder(self) -> Path:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir(parents=True)
        return folder

    def _session(self, settings: Settings) -> SparkSession:
        if self._spark is None:
            self._spark = self._own_session(settings) if self._engine is None else self._engine.attachment.session
            self._spark.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "1000ms")
            # A watermark that moves would take another batch each time; ticks close the windows.
            self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        return self._spark

    def _own_session(self, settings: Settings) -> SparkSession:
        os.environ["JAVA_HOME"] = str(find_java().home)
        own = settings.apart(self._folder / "state")
        clean_scratch(own, JOB)
        with redirect_output(self._folder / "spark.log"):
            return streaming_session(own, job=JOB, slots=_SLOTS)


def run_mutants(spark: SparkSession, catalog: Catalog, run: CaseRun, folder: Path) -> list[MutantOutcome]:
    """Run the cases of `run`, the generated ones too, as a batch on each mutant; `folder` is for its file."""
    spec = run.query.spec
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / spec.path.name
    outcomes: list[MutantOutcome] = []
    text = code_of(spec.path)
    for mutant in mutants_of(text.decode()):
        path.write_bytes(carrying(mutant.text.encode(), text))
        outcome = MutantOutcome(line=mutant.line, change=mutant.change)
        outcome.killed_by = _killer(spark, catalog, run, path)
        outcomes.append(outcome)
    return outcomes


def _killer(spark: SparkSession, catalog: Catalog, run: CaseRun, path: Path) -> str:
    try:
        query = CaseQuery(spark, read_spec(path), catalog)
        found = run.batch(run.cases, query)
    except ConfigError as error:
        return f"it is refused: {error.faults[0].what}"
    except Exception as error:  # a mutant that raises is noticed
        return f"it raises {type(error).__name__}"
    pairs = zip((prepared.case for prepared in run.cases), found, strict=True)
    return next((case.name for case, by_id in pairs if not is_met(case, by_id)), "")


@contextmanager
def open_lab(*, shares: bool = False) -> Iterator[CaseLab]:
    """Open a lab with files of its own; it ends with the block, and nothing is left of it but what it `shares`."""
    with tempfile.TemporaryDirectory(prefix="tocsin-", ignore_cleanup_errors=True) as folder:
        lab = CaseLab(Path(folder), shares=shares)
        try:
            yield lab
        finally:
            lab.close()


@contextmanager
def _in_a_line() -> Iterator[None]:
    try:
        yield
    except TocsinError:
        raise
    except Exception as error:
        raise TransientError(in_a_line(error)) from error


JOB = "cases"
_POOL = "test"
_BROKER = "broker.json"
_BROKER_SECONDS = 180.0
_IDLE_SECONDS = 600.0
# The second compiler would take most of the CPU of the first ten runs. Few short collections: plans are short-lived.
_JAVA = ("-XX:TieredStopAtLevel=1", "-Xms512m", "-Xmn256m", "-XX:ReservedCodeCacheSize=160m")


class CaseBroker:
    """A broker for cases in real-time mode, that starts in the background."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ready: Future[KafkaSettings] = Future()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start it, unless it was."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
            self._thread.start()

    def settings(self) -> KafkaSettings:
        """Wait for it; returns its address. ConfigError if it cannot start here, TransientError if it does not."""
        self.begin()
        return self.ready.result(_BROKER_SECONDS)

    def close(self) -> None:
        """End it."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # The broker ends with the thread that has started it, so this one stays.
        try:
            with temporary_broker(self._folder, JOB) as kafka:
                self.ready.set_result(kafka)
                self._ends.wait()
        except Exception as error:
            if not self.ready.done():
                self.ready.set_exception(error)


class CaseEngine:
    """The engine of the cases of a project, as one of its users sees it; raises as `attach_or_start`."""

    def __init__(self, settings: Settings) -> None:
        project = hashlib.sha256(str(settings.project).encode()).hexdigest()[:8]
        users = Path(tempfile.gettempdir(), f"tocsin-{os.getuid()}")
        self._folder = users / f"{project}-{engine_code(_apart(settings, users))}"
        command = [sys.executable, "-m", __name__, str(settings.project), str(self._folder)]
        self.attachment: Attachment = attach_or_start(_apart(settings, self._folder), _POOL, JOB, command)

    def broker(self) -> KafkaSettings | None:
        """Wait for its broker; None if there is none."""
        deadline = time.monotonic() + _BROKER_SECONDS / 6
        while (kafka := state_file.read(self._folder / _BROKER, KafkaSettings, None)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return kafka if accepts(int(kafka.bootstrap_servers.rpartition(":")[2])) else None

    def has_ended(self) -> bool:
        """Return whether its JVM does not answer any more."""
        try:
            self.attachment.session.conf.get("spark.sql.session.timeZone")
        except Exception:  # py4j raises many kinds
            return True
        return False


def _apart(settings: Settings, folder: Path) -> Settings:
    return settings.apart(folder).model_copy(update={"kafka": KafkaSettings.model_construct()})


def _run(project: Path, folder: Path) -> int:
    logs.keep_bounded()
    own, broker = _apart(load_settings(project), folder), CaseBroker(folder / "kafka")
    broker.ready.add_done_callback(lambda ready: state_file.write(folder / _BROKER, KafkaSettings, ready.result()))
    broker.begin()
    try:
        latency = own.latency_of(_POOL)
        run_until_idle(own, _POOL, lambda job: engine_session(own, job, latency, _JAVA), _IDLE_SECONDS)
    finally:
        broker.close()
    return ExitCode.OK


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    logs.configure(JOB)
    sys.exit(exit_code_of(lambda: _run(Path(sys.argv[1]), Path(sys.argv[2]))))
