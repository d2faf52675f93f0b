"""Send lines to a log drain as Logplex does: octet-counted frames, a frame id that a retry keeps, retries after 503."""

from __future__ import annotations

import base64
import http.client
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.ingest.line_forms import syslog_header

_BATCH_BYTES, _BATCH_LINES = 102_400, 1_000
_SECONDS = 10.0
_PAUSE_SECONDS = 0.5


@dataclass
class Sent:
    """Counts of a run: lines, batches, and those sent again, for lack of an answer or on purpose."""

    lines: int = 0
    batches: int = 0
    retries: int = 0
    repeats: int = 0


class BatchSender:
    """Sends lines. Use it from one thread."""

    def __init__(self, url: str, source: str, password: str, *, repeat: float = 0.0, patience: float = 60.0) -> None:
        """Send to the drain at `url`, such as http://127.0.0.1:8430/logs; ConfigError if it is no address.

        `source` is the user name; `repeat` the share of batches that are sent twice; `patience` the seconds for which a
        batch is tried.
        """
        self.sent = Sent()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError.one(url, "is no address of a drain; they look like http://127.0.0.1:8430/logs")
        self._url, self._path, self._repeat, self._patience = url, parts.path or "/logs", repeat, patience
        self._dice, self._token = random.Random(), f"d.{secrets.token_hex(16)}"
        login = base64.b64encode(f"{source}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}", "Content-Type": "application/logplex-1"}
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=_SECONDS)

    def send(self, lines: Iterable[bytes], advance: Callable[[int], None] = lambda count: None) -> None:
        """Send all `lines`, and tell after each batch how many it had.

        Raises:
            ConfigError: the drain refuses a batch; sending it again does not help.
            TransientError: it took none for as long as patience lasts.
        """
        for frames in _batches(lines):
            body, headers = b"".join(frames), self._of_batch(len(frames))
            self._send_until_taken(body, headers)
            if self._dice.random() < self._repeat:
                self._send_until_taken(body, headers)
                self.sent.repeats += 1
            self.sent.batches += 1
            self.sent.lines += len(frames)
            advance(len(frames))
        self._connection.close()

    def _of_batch(self, count: int) -> dict[str, str]:
        own = {"Logplex-Msg-Count": str(count), "Logplex-Frame-Id": secrets.token_hex(16)}
        return self._headers | own | {"Logplex-Drain-Token": self._token}

    def _send_until_taken(self, body: bytes, headers: dict[str, str]) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            status, answer = self._ask(body, headers)
            if status // 100 == 2:
                return
            if status // 100 == 4 and status != 429:
                raise ConfigError.one(self._url, f"answers {status}: {answer}")
            if time.monotonic() > deadline:
                raise TransientError(f"{self._url} has not taken a batch for {self._patience:.0f} s: {answer}")
            self.sent.retries += 1
            time.sleep(_PAUSE_SECONDS)

    def _ask(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """Return status and text of the answer; 0 when there is none."""
        try:
            self._connection.request("POST", self._path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return 0, f"{type(error).__name__}: {error}"


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    frames: list[bytes] = []
    size = 0
    for line in lines:
        whole = line if syslog_header(line) else _headed(line)
        frame = b"%d %s" % (len(whole), whole)
        if frames and (size + len(frame) > _BATCH_BYTES or len(frames) == _BATCH_LINES):
            yield frames
            frames, size = [], 0
        frames.append(frame)
        size += len(frame)
    if frames:
        yield frames


def _headed(line: bytes) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return f"<158>1 {now} host heroku router - ".encode() + line
