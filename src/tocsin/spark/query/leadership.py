"""Let one process write a checkpoint: the one that holds its lock.

A new version of a detector or a flow starts beside the one that leads (`tocsin.platform.lock`). It makes itself
ready, and leads as soon as that one has ended, however it ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

import psutil
import structlog

from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import boot_id
from tocsin.platform.lock import Lock, LockHeld, hold, try_lead
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.spark.engine import jvm
from tocsin.spark.engine.attachment import SESSION_LOCK, Attachment
from tocsin.spark.query.checkpoint import START
from tocsin.spark.query.work import Run

_LOOK_SECONDS = 0.1
_OUTLIVES_SECONDS = 5.0
_SAME_START_SECONDS = 2.0  # the boot is known to the second

log = structlog.get_logger()


class Ownership:
    """The checkpoint that this process alone writes, once it has taken it."""

    def __init__(self) -> None:
        self._owned: tuple[Path, Lock] | None = None

    def take(self, run: Run, checkpoint: Path) -> bool:
        """Become the writer of `checkpoint`; False if asked to stop before. OSError if it cannot be written."""
        if self._owned is not None and self._owned[0] == checkpoint:
            return True
        if self._owned is not None:
            self._owned[1].release()
            self._owned = None
        reported = None
        while not run.is_stopping:
            try:
                self._owned = checkpoint, own(run.settings, checkpoint, jvm.process_id(), run.attachment)
                return True
            except LockHeld:
                state = JobState.WAITING if run.reporter.leads else JobState.READY
            if state != reported:  # each update is a sign of life, and this loop does not need the JVM
                run.reporter.update(state=state, reason="resumes the running version's checkpoint")
                reported = state
            run.wait(_LOOK_SECONDS)
        return False


def own(settings: Settings, checkpoint: Path, jvm_id: int, attachment: Attachment | None = None) -> Lock:
    """Become the one process that writes `checkpoint` (of one fingerprint), with its JVM (a process id).

    A JVM outlives a killed driver by a moment, and goes on writing: it is waited for, then ended. So do the tasks of a
    session of an engine; the engine tells when they have ended. Raises LockHeld while another process writes, and an
    OSError if the folder cannot be written.
    """
    lock = try_lead(settings, checkpoint / "lock")
    try:
        if attachment is not None:
            attachment.claim(checkpoint)
        else:
            hold(checkpoint / SESSION_LOCK).release()
        _end_former(checkpoint / "jvm")
        writer = psutil.Process(jvm_id)
        engine = f" {writer.ppid()}" if attachment is not None else ""
        write_whole(checkpoint / "jvm", f"{_identity(writer)}{engine}")
    except BaseException:
        lock.release()
        raise
    return lock


def remove_other_checkpoints(settings: Settings, folders: JobFolders, fingerprints: Collection[str]) -> None:
    """Remove checkpoints with none of these fingerprints that no process writes; errors as of `try_lead`."""
    for start in folders.stored.glob(f"*/{START}"):
        if (name := start.parent.name) not in fingerprints:
            with contextlib.suppress(LockHeld), try_lead(settings, folders.local / name / "lock"):
                remove_tree(start.parent)
                remove_tree(folders.local / name)


def _identity(process: psutil.Process) -> str:
    """Name `process` in a way that holds when the clock is set: its id, its start since the boot, and that boot."""
    return f"{process.pid} {_started(process):.2f} {boot_id()}"


def _started(process: psutil.Process) -> float:
    """Return how many seconds after the boot `process` was started."""
    return process.create_time() - psutil.boot_time()


def _end_former(note: Path) -> None:
    """Wait for the end of the JVM that `note` names; one that takes too long is ended."""
    try:
        pid, started, boot, *engine = note.read_text(encoding="ascii").split()
        former = psutil.Process(int(pid))
        if engine == [str(former.ppid())]:
            return  # the engine lives, and has said that the session ended that wrote here
        if boot != boot_id() or abs(_started(former) - float(started)) > _SAME_START_SECONDS:
            return
        try:
            former.wait(_OUTLIVES_SECONDS)
        except psutil.TimeoutExpired:
            log.warning("orphaned JVM killed", pid=former.pid)
            former.kill()
            former.wait(_OUTLIVES_SECONDS)
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return
