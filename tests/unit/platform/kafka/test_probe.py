from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rig.waiting import patient
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.kafka.probe import ask

# The question as the protocol has it: size, key 18, version 0, correlation 1, no client id.
QUESTION = bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", ""))


@contextmanager
def broker(answer: bytes | None) -> Iterator[tuple[int, list[bytes]]]:
    """One that answers, that closes the connection (empty), or that is frozen (None)."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(64))
                if answer is None:
                    connection.recv(1)
                elif answer:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], heard
        thread.join(patient(10))


def at(*ports: int) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=",".join(f"127.0.0.1:{port}" for port in ports))


def test_a_broker_that_answers_is_there() -> None:
    with broker(b"\0\0\0\6\0\0\0\1\0\0") as (port, heard):
        ask(at(port))
    assert heard == [QUESTION]


def test_one_of_several_is_enough() -> None:
    with broker(b"\0\0\0\6\0\0\0\1\0\0") as (port, _):
        ask(at(free_ports(1)[0], port))


@pytest.mark.parametrize(("answer", "why"), [(b"", "closes the connection"), (None, "timed out")])
def test_one_that_takes_the_connection_and_does_not_answer_is_not(answer: bytes | None, why: str) -> None:
    with broker(answer) as (port, _), pytest.raises(TransientError, match=why):
        ask(at(port), 0.5)


def test_where_nobody_listens_it_says_where() -> None:
    port = free_ports(1)[0]
    with pytest.raises(TransientError, match=f"127.0.0.1:{port}: .*refused"):
        ask(at(port))
