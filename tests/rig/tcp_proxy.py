"""A connection between clients and a server that tests cut: nothing is refused then, and nothing answered."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_LOOPBACK = "127.0.0.1"
_BYTES = 65536


class TcpProxy:
    """Forwards what comes to `port`, a free one unless it is given, to another of this machine, unless it is cut."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server((_LOOPBACK, port), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing through from now on, in either direction."""
        self._whole.clear()

    def heal(self) -> None:
        """Let through what has waited, and all that comes."""
        self._whole.set()

    def hang_up(self) -> None:
        """End all connections, as a router does that has forgotten them."""
        for one in self._sockets.copy():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def lead_to(self, target: int) -> None:
        """Forward to another port from now on, as an address does that fails over."""
        self._target = target
        self.hang_up()

    def close(self) -> None:
        self._whole.set()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((_LOOPBACK, self._target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BYTES):
                self._whole.wait()
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(target: int, port: int = 0) -> Iterator[TcpProxy]:
    proxy = TcpProxy(target, port)
    try:
        yield proxy
    finally:
        proxy.close()
