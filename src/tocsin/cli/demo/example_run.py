"""Run `tocsin demo --example`: send lines steadily, name the page that shows the view, and check it by a recount."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime

from tocsin.cli.demo.companion import LOOK_SECONDS, Companion
from tocsin.cli.demo.example_traffic import ExampleTraffic, Rows, compare
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.dev.servers.sink_servers import KINDS
from tocsin.dev.startup_progress import StartupProgress
from tocsin.dev.state_folder import Running
from tocsin.ingest.producer import LineProducer
from tocsin.views.row_query import PageQuery, ViewReader
from tocsin.views.row_store import store_path
from tocsin.web.server import page_address

_RATE, _PAGE = 20.0, 1_000
_FIRST_SECONDS, _MOST_SECONDS = 10.0, 180.0


class ExampleRun(Companion):
    """Sends the lines of one example, and checks what its view holds."""

    def __init__(
        self, traffic: ExampleTraffic, progress: StartupProgress, stop: threading.Event, *, exit_when_done: bool
    ) -> None:
        super().__init__(progress, stop, exit_when_done=exit_when_done)
        self._traffic = traffic
        self._sending = threading.Lock()

    def can_lack(self, part: str) -> bool:
        """See `Companion`: without its sink a view is still kept in SQLite, and shown."""
        return part in {how.server.name for how in KINDS.values()}

    def demonstrate(self, settings: Settings, running: Running) -> None:
        """See `Companion`."""
        traffic = self._traffic
        self.say(f"{_RATE:.0f} lines per second go to the source {traffic.source}; {traffic.view} shows the result")
        self.say(f"its page, with the numbers moving: {page_address(settings)}")
        sender = threading.Thread(target=self._send, args=(settings,), name="lines", daemon=True)
        sender.start()
        self._check(settings)
        if not self.stop_asked.is_set():
            self.say(self._advice(settings, running))
        while not self.exit_when_done and not self.stop_asked.wait(LOOK_SECONDS):
            pass
        self.stop_asked.set()
        sender.join()

    def _send(self, settings: Settings) -> None:
        try:
            with LineProducer(settings, read_catalog(settings.project).source(self._traffic.source)) as producer:
                while not self.stop_asked.wait(1 / _RATE):
                    with self._sending:
                        producer.send(self._traffic.next_line(datetime.now(UTC)))
        except TransientError as error:
            if not self.stop_asked.is_set():
                self.fail([str(error)])

    def _check(self, settings: Settings) -> None:
        """Compare the view with a recount, once. Nothing is sent meanwhile, so that what is shown can catch up."""
        self.stop_asked.wait(_FIRST_SECONDS)
        deadline, faults = time.monotonic() + _MOST_SECONDS, ["it has no rows"]
        with self._sending:
            while faults and self.waits_until(deadline):
                with contextlib.suppress(TransientError, FileNotFoundError):
                    faults = compare(self._traffic.rows(), _rows(settings, self._traffic.view))
        if self.stop_asked.is_set():
            return
        if faults:
            self.fail(faults[:5])
        else:
            self.say(f"{self._traffic.view} equals a recount of the {self._traffic.count} lines that were sent")

    def _advice(self, settings: Settings, running: Running) -> str:
        variables = f"TOCSIN_PROJECT={settings.project} TOCSIN_STATE={settings.state}"
        view = read_catalog(settings.project).view(self._traffic.view)
        asks = self._traffic.asks if view.sink in running.sinks else ()
        return "\n".join(
            (
                f"in another terminal, after export {variables}, try:",
                f"  tocsin view {view.name}",
                *(f"  {ask.format(state=settings.state)}" for ask in asks),
                f"  the file to change: {view.path}",
                "Ctrl-C stops everything",
            )
        )


def _rows(settings: Settings, view: str) -> Rows:
    found: Rows = {}
    cursor = ""
    with contextlib.closing(ViewReader(store_path(settings, view))) as reader:
        while True:
            page = reader.page(PageQuery(limit=_PAGE, cursor=cursor))
            for row in page.rows:
                found[tuple(row.key.values()), row.window_start] = row.values
            if page.cursor is None:
                return found
            cursor = page.cursor
