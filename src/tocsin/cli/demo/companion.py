"""What runs beside the stack of a demo: it waits until that is ready, and then demonstrates."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tocsin.declare.model.sizes import printable
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.startup_progress import Part, StartupProgress
from tocsin.dev.state_folder import Running, read_running

LOOK_SECONDS = 0.4


class Companion(threading.Thread, ABC):
    """A thread that demonstrates, while the main thread keeps the stack running.

    It also passes on the progress of the stack, from which it learns when all is ready.
    """

    def __init__(self, progress: StartupProgress, stop: threading.Event, *, exit_when_done: bool) -> None:
        super().__init__(name="demo")
        self.faults: list[str] = []
        self.stop_asked, self.exit_when_done = stop, exit_when_done
        self._progress = progress
        self._ready = threading.Event()
        self._parts: Sequence[Part] = ()
        self._settled = False

    @abstractmethod
    def demonstrate(self, settings: Settings, running: Running) -> None:
        """Show what there is to show, until `stop_asked` unless it exits when done."""

    def can_lack(self, part: str) -> bool:
        """Return whether there is something to show without `part` of the stack."""
        del part
        return False

    def waits_until(self, deadline: float) -> bool:
        """Wait for the next look; false at the deadline or when the demo is to stop."""
        return time.monotonic() < deadline and not self.stop_asked.wait(LOOK_SECONDS)

    def fail(self, faults: list[str]) -> None:
        """Say and remember what did not happen as announced."""
        for fault in faults:
            self.say(f"not as announced: {printable(fault)}")
        if faults and not self.faults:
            self.say("to find out why: tocsin status, tocsin dev logs <job>")
        self.faults.extend(faults)

    # --- progress of the stack ----------------------------------------------------------------------------------------

    def show(self, parts: Sequence[Part]) -> None:
        """See `StartupProgress.show`; once all is ready, show failures only."""
        self._parts = parts
        if not self._ready.is_set() or self._failing():
            self._progress.show(parts)

    def say(self, text: str) -> None:
        """See `StartupProgress.say`. With the first sentence after all has settled, the stack says that it is ready."""
        self._progress.say(text)
        if self._settled:
            self._ready.set()

    def settle(self) -> None:
        """See `StartupProgress.settle`."""
        self._progress.settle()
        self._settled = bool(self._parts) and all(part.ready or part.failing for part in self._parts)

    def _failing(self) -> list[str]:
        return [f"{part.name}: {part.text}" for part in self._parts if part.failing and not self.can_lack(part.name)]

    # --- demonstration ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Wait for the stack, demonstrate, then run until `stop`, or exit when done if asked to."""
        while not self._ready.wait(LOOK_SECONDS):
            if self.stop_asked.is_set():
                return
        try:
            settings = load_settings()
            running = read_running(settings.state)
            if running is None or self._failing():
                self.fail(self._failing() or ["the stack has stopped"])
            else:
                self.demonstrate(settings, running)
        except Exception as error:
            # The main thread decides the exit code; a thread that dies must not look like a success.
            self.fail([f"{type(error).__name__}: {error}"])
        if self.exit_when_done:
            self.stop_asked.set()
