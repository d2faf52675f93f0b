"""Seal and backfill by the clock, without Airflow: what the DAGs `history__<source>` do with it."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import IO

import psutil
import structlog

from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import operators, put
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.platform import child_process
from tocsin.platform.process_exit import ExitCode
from tocsin.supervise.runners.log_files import rotate, tail

LOG = "history"
_MINUTE, _NIGHT = 10, 2
_STOP_SECONDS = 10.0
# A step that is not done by then hangs. What a long one had published stays, and the next round goes on from there.
_LONGEST_SECONDS = 6 * 3600.0
_LINES = 20
_MEANT = (ExitCode.OK, ExitCode.WARNED)

log = structlog.get_logger()


def next_round(after: datetime) -> datetime:
    """Return the first ten past an hour that comes after `after`."""
    moment = after.replace(minute=_MINUTE, second=0, microsecond=0)
    return moment if moment > after else moment + timedelta(hours=1)


def last_night(moment: datetime) -> datetime:
    """Return the latest 02:10 UTC that is not after `moment`."""
    night = moment.replace(hour=_NIGHT, minute=_MINUTE, second=0, microsecond=0)
    return night if night <= moment else night - timedelta(days=1)


class HistoryRounds:
    """A round at the start, then one at ten past each hour, on a thread of its own.

    A round is about each source whose topic was not read since the last 02:10 UTC: it reads and seals, makes the tables
    of this history anew, and backfills the detectors. Each step is the command of that name, in a process of its own:
    one that fails, hangs, or is killed, harms neither the next one nor the jobs.
    """

    def __init__(self, settings: Settings, command: Sequence[str] = (sys.executable, "-m", "tocsin.cli")) -> None:
        self._settings, self._command = settings, command
        self._failing: set[str] = set()  # people have heard of
        self._ended, self._child_lock = threading.Event(), threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Begin with the first round; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the step that runs, and wait for it; what it had not published, the next round does again."""
        self._ended.set()
        with self._child_lock:
            child = self._child
            if child is not None:
                child.terminate()
        if child is not None:
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()

    def _run(self) -> None:
        moment = datetime.now(UTC)
        while not self._ended.is_set():
            try:
                self.round(read_catalog(self._settings.project), moment)
            except Exception as error:  # whatever it is, the next hour must have its round
                log.exception("round of history failed", error=str(error))
            moment = next_round(datetime.now(UTC))
            self._ended.wait((moment - datetime.now(UTC)).total_seconds())

    def round(self, catalog: Catalog, moment: datetime) -> None:
        """Do all that is due at `moment`."""
        for source in catalog.sources.values():
            if not self._is_due(source, last_night(moment)):
                continue
            self._step("history", "seal", "--source", source.name)
            for table in catalog.history_tables(source.name):
                self._step("table", "--refresh", table.name)
            if specs := catalog.backfilled_of(source.name):
                self._step("backfill", "--yes", *(word for spec in specs for word in ("--detector", spec.name)))

    def _is_due(self, source: Source, night: datetime) -> bool:
        try:
            last = read_ledger(Places.of(self._settings, source.name)).last
        except (TocsinError, OSError):  # the step fails by it, and people hear of that
            return True
        return last is None or last.began < night

    def _step(self, *words: str) -> None:
        path = self._settings.log(LOG)
        path.parent.mkdir(parents=True, exist_ok=True)
        rotate(path)
        with path.open("ab") as output:
            code = self._code_of([*self._command, *words], output)
        if code is not None:
            write = log.info if code in _MEANT else log.error
            write("step of history ended", command=" ".join(words), code=code, log=str(path))
            self._mail_failure(" ".join(words), failed=code not in _MEANT)

    def _code_of(self, command: Sequence[str], output: IO[bytes]) -> int | None:
        """Run `command` to its end; return its exit code, None when all is about to stop."""
        with self._child_lock:
            if self._ended.is_set():
                return None
            words = [*child_process.prefix(), *command]
            self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            code = self._child.wait(_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            self._mail_hung(" ".join(command[len(self._command) :]))
            code = _end(self._child)
        return None if self._ended.is_set() else code

    def _mail_failure(self, words: str, *, failed: bool) -> None:
        """Write a mail about a step that has failed, unless it has failed, or hung, the last time too."""
        if failed and words not in self._failing:
            self._mail(words, "failed", f"`tocsin {words}` has failed. It will be tried again each time it is due.")
        self._failing = self._failing | {words} if failed else self._failing - {words}

    def _mail_hung(self, words: str) -> None:
        log.error("step of history hung", command=words, seconds=_LONGEST_SECONDS, log=str(self._settings.log(LOG)))
        self._mail(words, "hung", f"`tocsin {words}` was not done after {span(_LONGEST_SECONDS)}, and was ended.")
        self._failing.add(words)

    def _mail(self, words: str, what: str, sentence: str) -> None:
        now, path = datetime.now(UTC), self._settings.log(LOG)
        notice = Notice(
            subject=f"[tocsin] history: `{words.split(' --', maxsplit=1)[0]}` {what}",
            paragraphs=(sentence, "Nothing is half done: the next round begins again with what is missing."),
            commands=["tocsin history list", f"tail -n 100 {shlex.quote(str(path))}"],
            output=tail(path, _LINES),
            output_of=f"The end of its log ({path})",
        )
        to = operators(read_catalog(self._settings.project), self._settings)
        put(notice, f"history-{what}__{now:%Y%m%dT%H%M%S}", to, self._settings)


def _end(child: subprocess.Popen[bytes]) -> int:
    """End `child` and all below it: asked first, then by force; returns its exit code."""
    below = psutil.Process(child.pid).children(recursive=True)
    child.terminate()
    try:
        code = child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return code
