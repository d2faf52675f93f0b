"""Ask whether Kafka answers: one small question of its protocol, with no client library."""

from __future__ import annotations

import socket
import struct

from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import KafkaSettings

# ApiVersions (key 18), version 0, correlation 1, no client id: every broker answers it, even before a login.
_QUESTION = struct.pack(">hhih", 18, 0, 1, -1)
_SIZE = 4


def ask(kafka: KafkaSettings, seconds: float = 2.0) -> None:
    """Return when one of the brokers answers; over TLS, when one takes the connection.

    Raises a TransientError if none does within `seconds` each; says which was asked last, and what happened.
    """
    fault = "no broker is configured"
    for server in kafka.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
                if not kafka.security_protocol.endswith("SSL"):
                    connection.sendall(struct.pack(">i", len(_QUESTION)) + _QUESTION)
                    if len(connection.recv(_SIZE)) == 0:
                        raise ConnectionError("it closes the connection")
                return
        except (OSError, ValueError) as error:
            fault = f"{server.strip()}: {error}"
    raise TransientError(f"Kafka does not answer ({fault})")
