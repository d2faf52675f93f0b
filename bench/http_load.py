"""Requests from several connections, as fast as they are answered and then at half of what one core takes."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.processes import Program

_CLIENTS = 8
_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)

Request = Callable[[], bytes]
"""Makes the next request, head and body."""


@dataclass
class Asked:
    """What one server did with requests of one kind.

    Attributes:
        requests: that were answered with success, without a pause.
        cpu: seconds of the server meanwhile.
        seconds: that took.
        paced: milliseconds of each request at half the rate that one core would take.
    """

    requests: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    paced: list[float] = field(default_factory=list)

    @property
    def per_core(self) -> float:
        """Requests for each CPU-second of the server."""
        return self.requests / self.cpu


def ask(server: Program, port: int, request: Request, asked: Asked, seconds: float) -> None:
    """Send requests as fast as they are answered, then for as long at half of what one core takes."""
    asyncio.run(_clients(port, request, seconds / 4, lambda: 0.0))  # warm
    cpu, began = server.cpu_seconds(), time.monotonic()
    asked.requests += len(asyncio.run(_clients(port, request, seconds, lambda: 0.0)))
    asked.cpu += server.cpu_seconds() - cpu
    asked.seconds += time.monotonic() - began
    every = 2.0 / asked.per_core
    turn = iter(range(sys.maxsize))
    first = time.monotonic() + 0.1
    asked.paced += asyncio.run(_clients(port, request, seconds, lambda: first + next(turn) * every))


async def _clients(port: int, request: Request, seconds: float, due: Callable[[], float]) -> list[float]:
    """Ask from several connections; returns milliseconds from when each request was due, or sent, to its answer."""
    times: list[float] = []
    deadline = time.monotonic() + seconds
    await asyncio.gather(*(_client(port, request, deadline, due, times) for _ in range(_CLIENTS)))
    return times


async def _client(port: int, request: Request, deadline: float, due: Callable[[], float], times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (moment := max(due(), time.monotonic())) < deadline:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))
        writer.write(request())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"answered {head[:80]!r}")
        if length := _LENGTH.search(head):
            await reader.readexactly(int(length[1]))
        times.append(1000 * (time.monotonic() - moment))
    writer.close()
    await writer.wait_closed()
