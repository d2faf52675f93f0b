"""A real SMTP server for tests, whose answers a test may choose."""

import asyncio
import email
import logging
from collections.abc import Callable
from email.message import EmailMessage
from email.policy import default

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tocsin.dev.servers.ports import free_ports


def read_body(mail: EmailMessage, kind: str = "plain") -> str:
    """The text of a mail, or of its `html`."""
    part = mail.get_body((kind,))
    assert part is not None
    return str(part.get_content()).replace("\r\n", "\n")


# Each connection is a line, also after the standard error that a test has given to logging is closed.
logging.getLogger("mail.log").setLevel(logging.WARNING)
OK, DROPPED, LOST = "250 OK", "", "lost"
"""`DROPPED` and `LOST` are no answers: the server ends the connection. It keeps a mail whose answer is lost."""


class MailServer:
    """Takes mails on a free port of loopback; `start` and `stop` may be repeated, the port stays.

    Attributes:
        mails: what was accepted, in order, parsed.
        answer_recipient, answer_mail: replies by recipient; "250 ..." accepts.
        tried: the recipients of all mails whose text came, accepted or not.
    """

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.tried: list[str] = []
        self.answer_recipient: Callable[[str], str] = lambda recipient: OK
        self.answer_mail: Callable[[str], str] = lambda recipient: OK
        (self.port,) = free_ports(1)
        self._controller: Controller | None = None

    def start(self) -> None:
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port, ready_timeout=10)
        self._controller.start()

    def stop(self) -> None:
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.stop()

    def to(self, recipient: str) -> list[EmailMessage]:
        return [mail for mail in self.mails if mail["To"] == recipient]

    async def handle_RCPT(  # aiosmtpd looks it up by this name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = self.answer_recipient(address)
        if answer == OK:
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # the same
        self.tried.append(envelope.rcpt_tos[0])
        answer = self.answer_mail(envelope.rcpt_tos[0])
        if answer in (DROPPED, LOST):
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.abort()
        if answer in (OK, LOST):
            content = envelope.content
            assert isinstance(content, bytes)
            self.mails.append(email.message_from_bytes(content, policy=default))
        return answer
