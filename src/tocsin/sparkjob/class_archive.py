"""The AppCDS archive: Spark's classes, parsed once and mapped by every later JVM, which halves the start of a job.

The first JVM without an archive lists the classes it loads. Once its query runs, a second JVM of low priority makes the
archive from that list. Batches use it too: they start with the same class path.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path

import psutil
import structlog

from tocsin.project.settings import Settings
from tocsin.provision.java import archive_path, use_archive
from tocsin.provision.paths import here
from tocsin.runtime import child_process
from tocsin.runtime.lock import Lock, LockHeld, hold

_DUMP_SECONDS = 600
_OLD_SECONDS = 7 * 86_400
_LIST = "classes.list"

log = structlog.get_logger()


def options(settings: Settings, scratch: Path) -> list[str]:
    """Give JVM options that use the archive, or that prepare making it; none where it is switched off.

    `scratch` is a folder of the job, in which the list of classes is kept until then.
    """
    if not settings.spark.archive:
        return []
    return use_archive(own_archive()) or [f"-XX:DumpLoadedClassList={scratch / _LIST}"]


def batch_options(settings: Settings) -> list[str]:
    """Give JVM options of a batch that use the archive, if there is one."""
    return use_archive(own_archive()) if settings.spark.archive else []


def own_archive() -> Path:
    """Name the archive for the Java of this process, made or not."""
    return archive_path(here(), Path(os.environ.get("JAVA_HOME", "")))


class ArchiveBuild:
    """Makes the archive beside a running job, if it is missing and nobody else makes it."""

    def __init__(self, settings: Settings, scratch: Path, jvm: int) -> None:
        """Start making it from the classes that the JVM with process id `jvm` has loaded; does not wait."""
        self._path, self._list, self._jvm = own_archive(), scratch / _LIST, jvm
        self._dump: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        if settings.spark.archive and not self._path.exists() and self._list.exists():
            threading.Thread(target=self._make, name="archive", daemon=True).start()

    def stop(self) -> None:
        """End it, made or not."""
        self._ended.set()
        if self._dump is not None and self._dump.poll() is None:
            self._dump.kill()

    def _make(self) -> None:
        try:
            lock: Lock = hold(self._path.with_suffix(".lock"))
        except (LockHeld, OSError):
            return
        with lock:
            draft = self._path.with_suffix(f".{os.getpid()}.draft")
            try:
                if not self._path.exists() and self._write_archive(draft):
                    draft.replace(self._path)
                    _forget_old(self._path)
                    log.info("class archive written", bytes=self._path.stat().st_size)
            except (OSError, psutil.Error, subprocess.SubprocessError) as error:
                log.warning("class archive not written, starts stay slow", error=str(error))
            finally:
                for rest in (draft, self._list):
                    with contextlib.suppress(OSError):
                        rest.unlink(missing_ok=True)

    def _write_archive(self, draft: Path) -> bool:
        """Let a JVM with the options and the class path of the job's own write `draft`; False if it has not."""
        command = _java_command(psutil.Process(self._jvm).cmdline())
        java, *options = [word for word in command if not word.startswith("-XX:DumpLoadedClassList")]
        files = [f"-XX:SharedClassListFile={self._list}", f"-XX:SharedArchiveFile={draft}"]
        command = [java, "-Xshare:dump", *files, "-Xlog:cds=off", "-Xlog:cds*=off", *options]
        if self._ended.is_set():
            return False
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._dump = subprocess.Popen([*child_process.prefix(), "nice", "-n", "10", *command], **quiet)  # type: ignore[call-overload]  # of a dict
        return self._dump.wait(_DUMP_SECONDS) == 0 and draft.exists()


def _forget_old(current: Path) -> None:
    """Remove archives that were made long before `current`: after an upgrade of Spark or Java nobody uses them."""
    for path in current.parent.glob(f"*{current.suffix}"):
        with contextlib.suppress(OSError):
            if current.stat().st_mtime - path.stat().st_mtime > _OLD_SECONDS:
                path.unlink()


def _java_command(words: list[str]) -> list[str]:
    """Take the part of a JVM's command line before its main class: the executable, the options and the class path."""
    words_kept, takes_value = [words[0]], False
    for word in words[1:]:
        if not word.startswith("-") and not takes_value:
            break
        words_kept.append(word)
        takes_value = word in ("-cp", "-classpath", "--class-path")
    return words_kept
