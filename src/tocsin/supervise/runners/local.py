"""Jobs as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from tocsin.platform import child_process, private, process_exit
from tocsin.platform.fork_server import RunningProgram
from tocsin.supervise.runners import runner
from tocsin.supervise.runners.job_children import JobChildren
from tocsin.supervise.runners.log_files import rotate, tail
from tocsin.supervise.runners.runner import Labels, Launch, Process

_SAME_START_SECONDS = 1.0
_Child = subprocess.Popen[bytes] | RunningProgram

log = structlog.get_logger()


class LocalRunner:
    """Starts each process in a session of its own, found again by its labels in the live process list."""

    def __init__(
        self,
        instance: str,
        log: Callable[[str], Path],
        *,
        tethered: bool = False,
        detached: bool = False,
        servers: Path | None = None,
    ) -> None:
        """Run the processes labelled `instance`, see `runner.instance_of`; `log` gives the log file of a job.

        With `servers`, a folder, jobs run in children of a server there: see `JobChildren`.

        If `tethered` they end with the caller (Linux); then call `start` from its main thread alone, since they end
        with the thread. Otherwise they outlive it; if `detached` they are not even its children, which whoever ends
        the caller may end too, and `start` returns 0.
        """
        self._processes, self._log = ProcessList(instance), log
        self._prefix = child_process.prefix if tethered else lambda: ["setsid", "--fork"] if detached else []
        self._detached = detached
        self._forks = JobChildren(servers, tied=tethered) if servers else None
        self._children: dict[str, tuple[Labels, _Child]] = {}  # the last one of each job
        self._leaving: list[tuple[Labels, _Child]] = []  # those that another was started beside
        self._listed: list[int] = []

    def start(self, launch: Launch) -> int:
        """See `Runner.start`. A log that has grown too long is rotated first."""
        before = self._children.pop(launch.labels.job, None)
        if before is not None and before[1].poll() is None:
            self._leaving.append(before)
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        rotate(launch.log)
        exit_file = process_exit.variables(self._exit(launch.labels.job))
        environment = {**launch.environment, **launch.labels.variable(), **exit_file}
        with open(os.devnull, "rb") as nothing, launch.log.open("ab") as log:
            files = [nothing.fileno(), log.fileno(), log.fileno()]
            program = self._forks.start(launch, environment, files) if self._forks else None
            if program and self._detached:
                program.close()
                return 0
            child: _Child = program or subprocess.Popen(
                [*self._prefix(), *launch.command],
                stdin=nothing,
                stdout=log,
                stderr=log,
                cwd=launch.directory,
                env=environment,
                start_new_session=True,
                umask=private.UMASK,
            )
        if self._detached:
            child.wait()  # it has forked the job
            return 0
        self._children[launch.labels.job] = (launch.labels, child)
        return child.pid

    def stop(self, process: Process, *, force: bool = False) -> None:
        """See `Runner.stop`. Asked by SIGTERM to the leader alone; forced by SIGKILL to its tree and its group."""
        try:
            found = psutil.Process(process.pid)
            if abs(found.create_time() - process.started_at) > _SAME_START_SECONDS:
                return
            if force:
                _kill(found)
            else:
                found.terminate()
        except psutil.NoSuchProcess:
            return
        except psutil.AccessDenied:
            log.error("stop not permitted", of=process.labels.job, pid=process.pid)

    def list(self) -> list[Process]:
        """See `Runner.list`. Of a tree the leader alone; a part whose leader is gone is listed by itself."""
        rows = self._processes.rows()
        leaders = {pid for pid, row in rows.items() if row.leads and not _has_ancestor(row, rows)}
        alone = {pid: row for pid, row in rows.items() if pid in leaders or not _has_ancestor(row, rows)}
        found = [Process(row.labels, pid, row.started_at, pid in leaders) for pid, row in alone.items()]
        found += [process for process in self._ending() if process.pid not in rows]
        self._listed = [process.pid for process in found]
        return sorted(found, key=lambda process: (process.labels.job, process.started_at, process.pid))

    def wait_for_end(self, seconds: float) -> bool:
        """See `Runner.wait_for_end`."""
        ends, pids, ended = select.poll(), dict[int, int](), set[int]()
        with contextlib.ExitStack() as opened:
            for pid in self._listed:
                try:
                    handle = os.pidfd_open(pid)
                except ProcessLookupError:
                    ended.add(pid)
                    continue
                opened.callback(os.close, handle)
                ends.register(handle, select.POLLIN)
                pids[handle] = pid
            ended |= {pids[handle] for handle, _ in ends.poll(0 if ended else seconds * 1000)}
        self._listed = [pid for pid in self._listed if pid not in ended]
        return bool(ended)

    def shares_files(self) -> bool:
        """See `Runner.shares_files`. A container has a file system of its own, though it may share the process list."""
        try:
            places = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in self._listed}
            return places == {os.readlink("/proc/self/ns/mnt")}
        except OSError:  # one has just ended, or may not be looked at
            return False

    def exit_code(self, job: str) -> int | None:
        """See `Runner.exit_code`. Known for children of this very runner, and for jobs that tell it themselves."""
        child = self._children.get(job)
        code = None if child is None else child[1].poll()
        is_lost = child is None or (isinstance(child[1], RunningProgram) and child[1].is_lost)
        return process_exit.read(self._exit(job)) if is_lost else code

    def logs(self, job: str, lines: int) -> Sequence[str]:
        """See `Runner.logs`."""
        return tail(self._log(job), lines)

    def _exit(self, job: str) -> Path:
        """The file in which the last process of `job` tells its exit code."""
        return self._log(job).with_suffix(".exit")

    def _ending(self) -> Iterator[Process]:
        """Children that are not gone yet; at its end a process loses its command line before it can be waited for."""
        self._leaving = [(own, child) for own, child in self._leaving if child.poll() is None]
        for own, child in (*self._children.values(), *self._leaving):
            with contextlib.suppress(psutil.Error):
                if child.poll() is None:
                    yield Process(own, child.pid, psutil.Process(child.pid).create_time())


def _kill(leader: psutil.Process) -> None:
    tree = [leader, *leader.children(recursive=True)]
    with contextlib.suppress(OSError):  # it has ended meanwhile, or has a group that holds processes of others
        if os.getpgid(leader.pid) == leader.pid:
            os.killpg(leader.pid, signal.SIGKILL)
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _has_ancestor(row: ProcessRow, rows: dict[int, ProcessRow]) -> bool:
    above = rows.get(row.parent)
    while above is not None and above.labels.job != row.labels.job:
        above = rows.get(above.parent)
    return above is not None


# A process that is this old has replaced itself by its program, if it does (`child_process`, `exec` of a shell).
_SETTLED_SECONDS = 5.0
_FULL_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class ProcessRow:
    """One row of the process list that carries labels of this installation.

    `started_at` is epoch seconds, `parent` a pid; `leads` is False for a child that only inherits its labels.
    """

    process: psutil.Process
    started_at: float
    labels: Labels
    parent: int
    leads: bool


class ProcessList:
    """Finds the processes labelled `instance` that run as this user: labels of another user prove nothing."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._strangers: set[int] = set()
        self._labels: dict[tuple[int, float], tuple[Labels, bool]] = {}  # as read last
        self._settled: set[tuple[int, float]] = set()
        self._full_look_at = 0.0

    def rows(self) -> dict[int, ProcessRow]:
        """The processes of now, by pid; what ends, or may not be looked at, is left out."""
        pids, now = set(psutil.pids()), time.monotonic()
        if now >= self._full_look_at:
            self._full_look_at = now + _FULL_LOOK_SECONDS
            self._strangers = set()
        self._strangers &= pids
        self._labels = {key: own for key, own in self._labels.items() if key[0] in pids}
        self._settled &= self._labels.keys()
        found = {}
        for pid in sorted(pids - self._strangers):
            try:
                row = self._row(psutil.Process(pid))
            except (psutil.Error, OSError):  # it has ended, or may not be looked at: others are not hidden by it
                continue
            if row is not None:
                found[pid] = row
        return found

    def _row(self, process: psutil.Process) -> ProcessRow | None:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            started_at = process.create_time()
            key = (process.pid, started_at)
            own = self._labels.get(key)
            if key not in self._settled:
                own = self._read_labels(process) or own  # while a program replaces another it shows none
            is_settled = time.time() - started_at > _SETTLED_SECONDS
            if own is not None:
                self._labels[key] = own
                self._settled |= {key} if is_settled else set()
            elif is_settled:
                self._strangers.add(process.pid)
            return None if own is None else ProcessRow(process, started_at, own[0], process.ppid(), own[1])

    def _read_labels(self, process: psutil.Process) -> tuple[Labels, bool] | None:
        """The labels of `process`, and whether it leads; None when it is none of ours."""
        if process.uids().real != os.getuid():
            return None
        try:
            written = runner.of_command(process.cmdline())
            inherited = {} if written is not None else process.environ()
        except (psutil.Error, OSError):  # it ends, or may not be looked at, as those of the kernel
            return None
        found = written or runner.of_environment(inherited)
        if found is None or found.instance != self._instance:
            return None
        return found, written is not None or inherited.get(runner.LEADER) == str(process.pid)
