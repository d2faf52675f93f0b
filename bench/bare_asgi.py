"""The floor of the log drain: `bare_asgi.py PORT BROKER TOPIC whole|lines` answers when Kafka has the body.

It reads the body and writes it, as one record or as one for each frame that is found by its length; no passwords, no
limits, no identity, no counts.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from confluent_kafka import Producer


def frames(body: bytes) -> list[bytes]:
    """Split octet-counted frames."""
    found, at = [], 0
    while at < len(body):
        end = body.index(b" ", at)
        begin, at = end + 1, end + 1 + int(body[at:end])
        found.append(body[begin:at])
    return found


class Bare:
    """The application."""

    def __init__(self, broker: str, topic: str, split: bool) -> None:
        config = {"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 2, "compression.type": "lz4"}
        self._topic, self._split, self._producer = topic, split, Producer(config)
        threading.Thread(target=self._poll, daemon=True).start()

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        chunks, more = [], True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
        body, loop = b"".join(chunks), asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        records = frames(body) if self._split else [body]
        stored: list[object] = []

        def acknowledge(error: object, _: object) -> None:
            stored.append(error)
            if len(stored) == len(records):
                loop.call_soon_threadsafe(done.set_result, None)

        for record in records:
            self._producer.produce(self._topic, record, on_delivery=acknowledge)
        await done
        await send({"type": "http.response.start", "status": 500 if any(stored) else 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _poll(self) -> None:
        while True:
            self._producer.poll(0.1)


if __name__ == "__main__":
    port, broker, topic, how = sys.argv[1:]
    uvicorn.run(Bare(broker, topic, how == "lines"), port=int(port), lifespan="off", ws="none", log_level="warning")
