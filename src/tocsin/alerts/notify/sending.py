"""Send messages side by side, few to each recipient at a time, so that a slow receiver delays no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.alerts.notify.channel import Channels, Delivery, Message, server_of
from tocsin.alerts.notify.outbox import OutgoingMail
from tocsin.declare.receivers import MAIL, kind_of

_CONNECTIONS = 8
"""To one server at a time: few limit a client to less."""
_TO_PERSON = 4
"""Mails to one person at a time: each may wait for its evidence. Programs get one message after the other."""


@dataclass(frozen=True)
class Sent:
    """Outcome of one message: its delivery, or the error that composing or sending it raised."""

    mail: OutgoingMail
    outcome: Delivery | BaseException


class Sends:
    """The messages under way, each in a thread. For one thread, which notes their outcomes."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str], float] = {}
        self._done: queue.SimpleQueue[Sent] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def longest_seconds(self) -> float:
        """For how long the oldest of them has been under way."""
        return max((time.monotonic() - since for since in self._under_way.values()), default=0.0)

    def has_room(self, recipient: str, message_id: str) -> bool:
        """Return whether a message to `recipient` may leave now; not if it is under way."""
        own = sum(other == recipient for other, _ in self._under_way)
        busy = sum(server_of(other) == server_of(recipient) for other, _ in self._under_way)
        room = own < (_TO_PERSON if kind_of(recipient) == MAIL else 1) and busy < _CONNECTIONS
        return room and (recipient, message_id) not in self._under_way

    def start(self, channels: Channels, mail: OutgoingMail, compose: Callable[[OutgoingMail], Message]) -> None:
        """Begin to compose and send a message; there must be room for its recipient."""
        self._under_way[mail.recipient, mail.message_id] = time.monotonic()
        # A daemon: a receiver that hangs must not keep the process from ending.
        threading.Thread(target=self._send, args=(channels, mail, compose), name="send", daemon=True).start()

    def collect(self, within: float) -> list[Sent]:
        """Return what has ended; waits `within` seconds for the first."""
        ended: list[Sent] = []
        while len(ended) < len(self._under_way):
            try:
                ended.append(self._done.get(timeout=0.0 if ended else within))
            except queue.Empty:
                break
        for sent in ended:
            del self._under_way[sent.mail.recipient, sent.mail.message_id]
        return ended

    def _send(self, channels: Channels, mail: OutgoingMail, compose: Callable[[OutgoingMail], Message]) -> None:
        try:
            self._done.put(Sent(mail, channels.send(compose(mail))))
        except BaseException as error:  # whatever it is, the thread that waits for it decides
            self._done.put(Sent(mail, error))
