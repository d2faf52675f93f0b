"""A connection between clients and a server that tests cut: nothing is refused then, and nothing answered."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

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
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing through from now on, in either direction."""
        self._whole.clear()

    def heal(self) -> None:
        """Let through what has waited, and all that comes."""
        self._whole.set()

    def hang_up(self) -> None:
        """End all connections, as a router does that has forgotten them."""
        for one in [*self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def lead_to(self, target: int) -> None:
        """Forward to another port from now on, as an address does that fails over."""
        self._target = target
        self.hang_up()

    def close(self) -> None:
        self._whole.set()
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        refused = contextlib.suppress(OSError)  # the server has ended
        with client, refused, socket.create_connection((_LOOPBACK, self._target)) as server:
            self._open |= {client, server}
            back = threading.Thread(target=self._forward, args=(server, client, lambda _: True), daemon=True)
            back.start()
            self._forward(client, server, self._inspection())
            back.join()
            self._open -= {client, server}

    def _inspection(self) -> Callable[[bytes], bool]:
        """Return what is asked of each part of what one client sends: the connection ends where it says no."""
        return lambda _: True

    def _forward(self, source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bool]) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(_BYTES)) and passes(data):
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
