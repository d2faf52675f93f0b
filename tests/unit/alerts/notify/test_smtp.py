"""Mails over SMTP, with a server that takes its time or ends the connection between two mails."""

import asyncio
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from aiosmtpd.smtp import SMTP

from tests.rig.mail_server import MailServer
from tocsin.alerts.notify.channel import Message, Result
from tocsin.alerts.notify.smtp import SmtpChannel, _PatientSmtp
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings

_TIMEOUT = 0.3


@pytest.fixture
def channel(server: MailServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmtpChannel]:
    monkeypatch.setattr("tocsin.alerts.notify.smtp._CONNECT_SECONDS", _TIMEOUT)
    channel = SmtpChannel(Settings(smtp=SmtpSettings(port=server.port)))
    yield channel
    channel.close()


def mail_to(recipient: str) -> Message:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    return Message(id=f"<{recipient}>", recipient=recipient, subject="s", text="t", html="<p>t</p>", date=at)


def test_a_server_that_takes_its_time_to_accept_a_mail_gets_it_once(
    server: MailServer, channel: SmtpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scans what it has got. Whoever gives up meanwhile sends the same mail again and again."""
    accept = MailServer.handle_DATA

    async def scan(self: MailServer, *arguments: object) -> str:
        answer = await accept(self, *arguments)  # type: ignore[arg-type]  # passed through
        await asyncio.sleep(3 * _TIMEOUT)
        return answer

    monkeypatch.setattr(MailServer, "handle_DATA", scan)
    sent = [channel.send(mail_to(f"{name}@example.com")).result for name in ("ann", "bob")]
    assert sent == [Result.SENT] * 2
    assert [mail["To"] for mail in server.mails] == ["ann@example.com", "bob@example.com"]


def test_a_connection_that_the_server_ended_between_two_mails_is_the_fault_of_neither(
    server: MailServer, channel: SmtpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many servers end a connection after some mails, or after some idle minutes."""
    close = SMTP.smtp_QUIT
    accept = MailServer.handle_DATA

    async def accept_one(self: MailServer, smtp: SMTP, *arguments: object) -> str:
        answer = await accept(self, smtp, *arguments)  # type: ignore[arg-type]  # passed through
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, close(smtp, ""))
        return answer

    monkeypatch.setattr(MailServer, "handle_DATA", accept_one)
    sent = [channel.send(mail_to(f"{name}@example.com")).result for name in ("ann", "bob", "eve")]
    assert sent == [Result.SENT] * 3
    assert len(server.mails) == 3


@pytest.mark.parametrize(
    ("answer", "result"),
    [("450 try later", Result.POSTPONED), ("550 no", Result.REFUSED), ("421 closing down", Result.FAILED)],
)
def test_an_answer_to_the_text_of_a_mail_is_about_that_mail(
    server: MailServer, channel: SmtpChannel, answer: str, result: Result
) -> None:
    server.answer_mail = lambda to: answer if to == "ann@example.com" else "250 OK"
    assert channel.send(mail_to("ann@example.com")).result is result
    assert channel.send(mail_to("bob@example.com")).result is Result.SENT


def test_a_server_that_does_not_greet_within_the_time_to_connect_is_not_away_yet(
    server: MailServer, channel: SmtpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some let every sender wait, as those of spam do not."""
    greet = SMTP._handle_client

    async def late(self: SMTP) -> None:
        await asyncio.sleep(3 * _TIMEOUT)
        await greet(self)

    monkeypatch.setattr(SMTP, "_handle_client", late)
    assert channel.send(mail_to("ann@example.com")).result is Result.SENT


@pytest.mark.parametrize(("command", "seconds"), [("data", 600), ("rcpt", 300), ("noop", 60)])
def test_a_server_that_never_answers_is_waited_for_as_long_as_the_rfc_asks(command: str, seconds: int) -> None:
    smtp = _PatientSmtp()
    smtp.sock, smtp.file = Mock(), io.BytesIO(b"250 OK\r\n")
    smtp.docmd(command)
    smtp.sock.settimeout.assert_called_once_with(seconds)
