"""Lead a job, or wait for it: the lock of a file on one machine, and besides a lease where several run an installation.

The lock comes first in both forms. It tells processes of one machine apart, at once and however they end; so whoever
holds it may go on with a lease that was taken from the same lock file, and only other machines wait for its end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import structlog

from tocsin.model.errors import ConfigError, TransientError
from tocsin.project.settings import Settings
from tocsin.runtime import private
from tocsin.runtime.leases.lease_keeper import LeaseKeeper
from tocsin.runtime.leases.lease_table import LeaseRow, LeaseTable
from tocsin.runtime.lock import Lock, LockHeld, hold

_LOOK_SECONDS = 0.1
_ASK_SECONDS = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
log = structlog.get_logger()


class LeaseHeld(LockHeld):
    """Another machine leads, as far as is known; a retry helps once it has stopped, or could not renew its lease."""

    def __init__(self, path: Path, row: LeaseRow) -> None:
        super().__init__(path, None)
        self.row = row

    def __str__(self) -> str:
        left = self.row.ends_in or 0.0
        ends = f"its lease holds {left:.0f} s more" if left > 0 else "its lease has ended"
        return f"{self.row.holder} leads {self.row.name}; {ends}"


class Lease(Lock):
    """A held lock whose holder leads on all machines, until `release`.

    Attributes:
        name: of the lease.
        term: higher than that of any holder before.
    """

    def __init__(self, lock: Lock, keeper: LeaseKeeper, name: str, term: int) -> None:
        self.path, self.name, self.term = lock.path, name, term
        self._lock, self._keeper = lock, keeper

    def check(self) -> None:
        """Raise LeaseLost if it has ended, by this machine's clock."""
        self._keeper.check(self.name, self.term or 0)

    def release(self) -> None:
        """Give it back, and those of its checkpoints; a second call does nothing."""
        self._keeper.give_back(self.name)
        self._lock.release()


def try_lead(settings: Settings, path: Path) -> Lock:
    """Take the lock file `path`, of a checkpoint folder, and its lease if the settings ask for leases.

    Makes the state folder, if this is the first to write there.

    Raises:
        LockHeld: another process of this machine holds it; LeaseHeld, one of another.
        TransientError: the lease database is away; a retry helps.
        ConfigError: it cannot be used, or the state folder cannot (see `private.protect`).
        OSError: the lock cannot be written.
    """
    private.begin(settings.state)
    lock = hold(path)
    if not settings.leases.is_on:
        return lock
    try:
        keeper, name = keeper_of(settings), name_of(settings, path)
        taken = keeper.take(name, _place(path), f"process {os.getpid()} on {socket.gethostname()}")
        if isinstance(taken, LeaseRow):
            raise LeaseHeld(path, taken)
        return _hold_as(Lease(lock, keeper, name, taken))
    except BaseException:
        lock.release()
        raise


def lead_batch(settings: Settings, path: Path) -> Lock:
    """Take the right to run a batch, as `try_lead`, whose errors it raises; of several machines one runs it.

    A batch that another machine has begun and does not renew is waited for, the length of a lease at most: nobody else
    watches until it has ended. One that renews is left alone.
    """
    seen: int | None = None
    while True:
        try:
            return try_lead(settings, path)
        except LeaseHeld as error:
            if seen not in (None, error.row.beats):
                raise
            if seen is None:
                log.info("asking whether another machine still runs it", reason=str(error))
            seen = error.row.beats
        time.sleep(_ASK_SECONDS)


def held_lease(settings: Settings, job: str) -> Lease | None:
    """Return the lease with which this process leads `job`; None if it has none."""
    return _held.get(name_of(settings, settings.checkpoint(job) / "lock")) if settings.leases.is_on else None


def led_elsewhere(settings: Settings, path: Path) -> LeaseRow | None:
    """Return the lease of `path` if a process of another machine leads by it; errors as for `try_lead`."""
    if not settings.leases.is_on:
        return None
    row = keeper_of(settings).table.read(name_of(settings, path))
    return None if row is None or row.ends_in is None or row.place == _place(path) else row


def live_leases(settings: Settings) -> list[LeaseRow]:
    """List the leases of this installation that have not ended, on all machines; errors as for `try_lead`."""
    return keeper_of(settings).table.held(f"{settings.instance}/") if settings.leases.is_on else []


def guard(
    settings: Settings,
    *,
    stops: Iterable[Callable[[str], object]],
    renewed: Callable[[float], object] = lambda _: None,
) -> None:
    """Say what must happen before this process ends because it has lost a lease; nothing without leases.

    Args:
        settings: of the installation.
        stops: called in turn with the reason, the one that stops what writes first.
        renewed: called after each renewal with the seconds for which this process may go on.
    """
    if settings.leases.is_on:
        keeper = keeper_of(settings)
        for stop in stops:
            keeper.on_lost(stop)
        keeper.on_renewed(renewed)


def keeper_of(settings: Settings) -> LeaseKeeper:
    """Return the one keeper of this process.

    Raises:
        ConfigError: the settings of leases are wrong.
    """
    leases = settings.leases
    if settings.installation_id != settings.instance:
        what = "must name this installation, the same on all its machines, when leases decide who leads"
        raise ConfigError.one("tocsin.toml", what, key="instance")
    address, length = leases.address(), leases.length.total_seconds()
    with _one_at_a_time:
        if (address, length) not in _keepers:
            _keepers[address, length] = LeaseKeeper(LeaseTable(address, length, patience=min(5.0, length / 4)), length)
        return _keepers[address, length]


def name_of(settings: Settings, path: Path) -> str:
    """Name the lease of the lock file `path`, the same on all machines."""
    return f"{settings.instance}/{path.parent.relative_to(settings.state / 'checkpoints')}"


class Lead:
    """The right to lead one job, held or waited for until `close`.

    Attributes:
        held: this process leads.
    """

    def __init__(self, settings: Settings, job: str, *, beside: bool = False) -> None:
        """Take the right to lead `job`; a process that is started `beside` another one may wait for it.

        Raises:
            LockHeld: another process of this machine leads, and this one is not meant to run beside it.
            ConfigError: the lease database cannot be used.
            OSError: the lock cannot be written.
        """
        self._settings, self._path, self._beside = settings, settings.checkpoint(job) / "lock", beside
        self._stop = threading.Event()
        self._lock: Lock | None = None
        self._thread: threading.Thread | None = None
        self._elsewhere = self._away = ""
        self._look()

    @property
    def held(self) -> bool:
        """See the class."""
        return self._lock is not None

    def await_turn(self, tell: Callable[[str, bool], object], stop: threading.Event) -> bool:
        """Wait while another machine leads, or the lease database is away: nothing may be begun meanwhile.

        Args:
            tell: gets the reason, and whether it is that the database is away, again and again.
            stop: ends the wait.

        Returns:
            Whether this process may begin: it leads, or the process that it runs beside does.
        """
        while self._elsewhere or self._away:
            tell(self._elsewhere or self._away, bool(self._away))
            if stop.wait(_ASK_SECONDS):
                return False
            self._look()
        return True

    def follow(self, took: Callable[[], None]) -> None:
        """Wait for the lock in the background if it is not held, and call `took` from there once it is."""
        if not self.held:
            self._thread = threading.Thread(target=self._wait, args=(took,), name="lead", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give the lock back, or wait for it no longer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Lead:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _look(self) -> None:
        """Take the lead, or learn why not."""
        self._elsewhere = self._away = ""
        try:
            try:
                self._lock = try_lead(self._settings, self._path)
            except LeaseHeld as error:
                self._elsewhere = str(error)
            except LockHeld:
                # Of two that stand by on a machine one may hold the lock just while it asks for the lease.
                if (row := led_elsewhere(self._settings, self._path)) is not None:
                    self._elsewhere = str(LeaseHeld(self._path, row))
                elif not self._beside:
                    raise
        except TransientError as error:
            self._away = str(error)

    def _wait(self, took: Callable[[], None]) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            with contextlib.suppress(LockHeld, OSError, TransientError, ConfigError):
                try:
                    self._lock = try_lead(self._settings, self._path)
                except LeaseHeld as error:
                    # Whoever led here has lost it: what this process writes is no longer its own.
                    keeper_of(self._settings).lose(str(error))
                    return
                log.info("leadership taken")
                took()
                return


_keepers: dict[tuple[str, float], LeaseKeeper] = {}
_held: dict[str, Lease] = {}
_one_at_a_time = threading.Lock()


def _hold_as(lease: Lease) -> Lease:
    _held[lease.name] = lease
    return lease


def _place(path: Path) -> str:
    """Identify the lock file `path` among those of all machines, and of this one before it was started last."""
    status = path.stat()
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = f"{socket.gethostname()}/{psutil.boot_time():.0f}"
    return f"{boot}/{status.st_dev}:{status.st_ino}"
