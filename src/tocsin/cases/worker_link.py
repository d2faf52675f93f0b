"""Talk to the process that runs cases, and detectors on files: it keeps Spark for the next run.

It ends when nobody has asked for a while. It listens on a socket in a folder that only this user may enter, whose name
is made of the code of Tocsin and of what decides about Spark: a changed installation gets a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.cases.case_report import TestReport, Way
from tocsin.model.errors import ConfigError, Fault, TransientError
from tocsin.model.finding import Finding
from tocsin.project.settings import Settings
from tocsin.runtime.process_exit import ExitCode

_PACKAGE = Path(__file__).parents[1]
_START_SECONDS = 120.0
_STOP = b'{"stop":true}\n'
LONGEST_ANSWER = 64 << 20
_STARTED: list[subprocess.Popen[bytes]] = []  # Python warns of one that runs when nobody knows it any more


class TestRequest(BaseModel):
    """What is to be run.

    Attributes:
        project: folder of the project.
        names: of detectors.
        ways: see `Way`.
        mutate: also change the detectors.
        timelines: also run so many that are made at random from the cases.
        seed: decides which.
    """

    __test__ = False  # pytest takes it for a class of tests

    project: Path
    names: list[str]
    ways: list[Way]
    mutate: bool = False
    timelines: int = 0
    seed: int = 1


class FileRequest(BaseModel):
    """A detector to run on a file.

    Attributes:
        project: folder of the project.
        detector: its name; in any stage.
        file: its path.
        is_events: its lines are records of the events topic, not of the raw one.
        records: the source whose records its lines are, where flows make events of several.
        most: so many findings at most are sent back.
    """

    project: Path
    detector: str
    file: Path
    is_events: bool = False
    records: str = ""
    most: int


class LeftOutRows(BaseModel):
    """Rows of a file that are no events for one reason.

    Attributes:
        reason: as in quarantine, or `ignored`.
        count: how many there are.
        rows: the numbers of the first of them, from 1 on; of lines, their line numbers.
    """

    reason: str
    count: int
    rows: list[int] = []


class FileReport(BaseModel):
    """What a detector finds in a file.

    Attributes:
        detector, version: its name, and the version of its code and limits.
        source: whose format the rows have.
        rows: of the file: lines, rows of CSV or of Parquet.
        events: made of them.
        left_out: the others, the most frequent reason first; a row may have several reasons.
        days_left_out: days whose events were left out, since a table that is joined has no rows for them, and why.
        first, last: the earliest and latest event time; None without events.
        total: findings in all.
        urgent: those of level urgent.
        findings: the first of them by their time.
        failed_in_step: events that a `step` raised on, which left them out.
        seconds: that it took.
    """

    detector: str
    version: str
    source: str
    rows: int = 0
    events: int = 0
    left_out: list[LeftOutRows] = []
    days_left_out: dict[date, str] = {}
    first: datetime | None = None
    last: datetime | None = None
    total: int = 0
    urgent: int = 0
    findings: list[Finding] = []
    failed_in_step: int = 0
    seconds: float = 0.0


class WorkerRequest(BaseModel):
    """One of the things that can be asked for."""

    test: TestRequest | None = None
    file: FileRequest | None = None


class WorkerAnswer(BaseModel):
    """What became of a request: a report, faults, or an error in a line; before it, how far it has come."""

    test: TestReport | None = None
    file: FileReport | None = None
    faults: list[Fault] = []
    error: str = ""
    progress: str = ""


class WorkerPlace:
    """The files of one such process.

    Attributes:
        socket, log, lock: its files.
        work: folder for the files of runs.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.socket, self.log, self.lock = (folder / f"{key}.{end}" for end in ("sock", "log", "lock"))
        self.work = folder / f"{key}.work"


def run_cases(settings: Settings, request: TestRequest, *, keep: bool = True) -> TestReport:
    """Run cases in the process for it, which is started if need be and ends at once unless it is to `keep`.

    Raises:
        ConfigError: something is wrong with the project or the machine.
        TransientError: the process has ended before it answered; says what it wrote last.
    """
    report = _ask(settings, WorkerRequest(test=request), lambda _: None, keep=keep).test
    assert report is not None
    return report


def run_on_file(
    settings: Settings, request: FileRequest, tell: Callable[[str], object], *, keep: bool = True
) -> FileReport:
    """Run a detector on a file in the same process; `tell` is called with how far it has come. See `run_cases`."""
    report = _ask(settings, WorkerRequest(file=request), tell, keep=keep).file
    assert report is not None
    return report


def _ask(settings: Settings, request: WorkerRequest, tell: Callable[[str], object], *, keep: bool) -> WorkerAnswer:
    with _place(settings, keep=keep) as place, _connected(place, keep=keep) as link:
        link.sendall(request.model_dump_json().encode() + b"\n")
        with link.makefile("rb") as lines:
            while line := lines.readline(LONGEST_ANSWER):
                answer = WorkerAnswer.model_validate_json(line)
                if not answer.progress:
                    break
                tell(answer.progress)
            else:
                raise TransientError(f"the process that runs detectors has ended: {_last_line(place.log)}")
    if answer.faults:
        raise ConfigError(answer.faults)
    if answer.error:
        raise TransientError(answer.error)
    return answer


@contextmanager
def _place(settings: Settings, *, keep: bool) -> Iterator[WorkerPlace]:
    if not keep:
        with tempfile.TemporaryDirectory(prefix="tocsin-") as own:
            yield WorkerPlace(Path(own), "once")
        return
    folder = Path(tempfile.gettempdir()) / f"tocsin-cases-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError.one(folder, "must be a folder that only you may enter; remove it, or use --no-worker")
    yield WorkerPlace(folder, _key(settings))


def _key(settings: Settings) -> str:
    """Hash what decides which code runs, how its Spark is set, and which installation a project has there.

    The settings of a project are read by that process, so by the variables of the shell that has begun it.
    """
    files = sorted((str(path), path.stat().st_mtime_ns) for path in _PACKAGE.rglob("*.py"))
    java = [os.environ.get(name, "") for name in ("JAVA_HOME", "JDK_JAVA_OPTIONS")]
    own = sorted(one for one in os.environ.items() if "TOCSIN_" in one[0] and one[0] != "TOCSIN_PROJECT")
    text = json.dumps([files, sys.executable, settings.spark.model_dump(), java, own])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _connected(place: WorkerPlace, *, keep: bool) -> Iterator[socket.socket]:
    """Connect to the process, and start it if it does not run."""
    link, started = _connect(place.socket), None
    if link is None:
        _stop_others(place)
        started = _start(place, keep=keep)
        deadline = time.monotonic() + _START_SECONDS
        while (link := _connect(place.socket)) is None:
            if started.poll() not in (None, ExitCode.LOCKED):  # that of another call may be about to answer
                raise TransientError(f"the process that runs detectors does not start: {_last_line(place.log)}")
            if time.monotonic() > deadline:
                started.kill()
                raise TransientError(f"the process that runs detectors does not answer; its log: {place.log}")
            time.sleep(0.05)
    try:
        yield link
    finally:
        link.close()
        if started is not None and not keep:
            started.wait()


def _start(place: WorkerPlace, *, keep: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tocsin.cases.spark", str(place.socket.with_suffix(""))]
    command += [] if keep else ["--once"]
    with place.log.open("ab") as log:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _STARTED.append(started)
    return started


def _connect(path: Path) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    return link


def _stop_others(place: WorkerPlace) -> None:
    """Ask the processes of other versions to end: each holds a gigabyte."""
    for path in place.socket.parent.glob("*.sock"):
        if path != place.socket and (link := _connect(path)) is not None:
            with link, suppress(OSError):
                link.sendall(_STOP)


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:500] if lines else "it has written nothing"
