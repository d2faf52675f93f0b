"""Messages as mails to the SMTP server: one connection for several."""

from __future__ import annotations

import smtplib
import ssl
from email.header import Header
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from tocsin.alerts.notify.channel import PICTURE, Delivery, Message, Result
from tocsin.declare.model.sizes import printable
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings

_REPLY_SECONDS = {"mail": 300.0, "rcpt": 300.0, "data": 600.0, "quit": 5.0}
"""For how long RFC 5321 (4.5.3.2) asks a client to wait. Whoever gives up sooner after the text of a mail does not know
that it was taken, and sends it again. No mail waits for the answer to QUIT."""

_OTHER_REPLY_SECONDS = 60.0
_CONNECT_SECONDS = 20.0
"""For the greeting and the login, where giving up repeats nothing and shows that the server is away. The RFC asks for
five minutes; a server that lets strangers wait takes less than one."""


class _PatientSmtp(smtplib.SMTP):
    """Waits for each reply as long as its command deserves; `timeout` is for connecting."""

    _reply_seconds = _OTHER_REPLY_SECONDS

    def putcmd(self, cmd: str, args: str = "") -> None:
        self._reply_seconds = _REPLY_SECONDS.get(cmd.lower(), _OTHER_REPLY_SECONDS)
        super().putcmd(cmd, args)

    def getreply(self) -> tuple[int, bytes]:
        if self.sock is not None:
            self.sock.settimeout(self._reply_seconds)
        return super().getreply()


class _PatientSmtpOverTls(_PatientSmtp, smtplib.SMTP_SSL):
    """The same, inside TLS from the start."""


class SmtpChannel:
    """An SMTP connection that opens with the first mail."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.smtp
        self._server: smtplib.SMTP | None = None

    def close(self) -> None:
        """See `Channel.close`."""
        server, self._server = self._server, None
        if server is not None:
            try:
                server.quit()
            except (smtplib.SMTPException, OSError):
                server.close()

    def send(self, message: Message) -> Delivery:
        """Hand over one mail: 5xx for its recipient or content refuses it, 4xx postpones it; see `Channel.send`.

        The server is away if it takes no connection or no login. If it refuses the sender, or the connection ends
        in the middle, the mail has failed: the next one shows whether it was this mail's fault.
        """
        place = f"SMTP server {self._settings.host}:{self._settings.port}"
        mail, recipient = as_mail(message, self._settings), message.recipient
        password = self._settings.password()
        try:
            server = self._server = self._usable() or self._log_in(password)
        except (smtplib.SMTPException, OSError) as error:
            return Delivery(Result.AWAY, f"{place}: {_line(error)}")
        try:
            server.send_message(mail, self._settings.sender, [recipient])
        except smtplib.SMTPRecipientsRefused as error:
            return _refusal(*error.recipients[recipient], f"{place} refuses {recipient}")
        except smtplib.SMTPDataError as error:
            return _refusal(error.smtp_code, error.smtp_error, f"{place} refuses the mail")
        except smtplib.SMTPNotSupportedError as error:
            return Delivery(Result.REFUSED, f"{place} cannot carry the mail: {error}")
        except (smtplib.SMTPException, OSError) as error:
            server.close()
            return Delivery(Result.FAILED, f"{place}: {_line(error)}")
        return Delivery(Result.SENT)

    def _usable(self) -> smtplib.SMTP | None:
        if self._server is not None:
            try:
                if self._server.noop()[0] == 250:
                    return self._server
            except (smtplib.SMTPException, OSError):
                pass
            self._server.close()
        return None

    def _log_in(self, password: str | None) -> smtplib.SMTP:
        settings = self._settings
        if settings.tls == "implicit":
            context = ssl.create_default_context()
            server: smtplib.SMTP = _PatientSmtpOverTls(
                settings.host, settings.port, timeout=_CONNECT_SECONDS, context=context
            )
        else:
            server = _PatientSmtp(settings.host, settings.port, timeout=_CONNECT_SECONDS)
        try:
            if settings.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            server.ehlo_or_helo_if_needed()
            if settings.username is not None and password is not None:
                server.login(settings.username, password)
        except BaseException:
            server.close()
            raise
        return server


def as_mail(message: Message, settings: SmtpSettings) -> EmailMessage:
    """Build the mail: multipart/alternative of the text, and the HTML with its picture inside."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address(display_name="Tocsin", addr_spec=settings.sender)
    mail["To"] = message.recipient
    # Mail programs decode "=?utf-8?q?...?=" in a header, wherever it came from.
    subject = printable(message.subject).replace("=?", "=\\u003f")
    if subject.isascii():
        mail["Subject"] = subject
    else:
        # A space where Python folds an encoded subject is lost (python/cpython#92081); this older class keeps it.
        mail.set_raw("Subject", Header(subject, "utf-8", header_name="Subject").encode(linesep="\r\n"))
    mail["Date"] = format_datetime(message.date)
    mail["Message-ID"] = message.id
    mail["Auto-Submitted"] = "auto-generated"
    if message.thread:
        mail["References"] = mail["In-Reply-To"] = message.thread
    if message.series:
        mail["List-Id"] = f"<{message.series}.tocsin.{settings.domain}>"
    if message.urgent:
        mail["Importance"] = "high"
        mail["X-Priority"] = "1 (Highest)"
    mail.set_content(message.text, cte="quoted-printable")
    mail.add_alternative(message.html, subtype="html", cte="quoted-printable")
    if message.picture:
        html = mail.get_payload(1)
        assert isinstance(html, EmailMessage)
        cid = f"<{PICTURE}>"
        html.add_related(message.picture, "image", "png", cid=cid, disposition="inline", filename="score.png")
    if subject.isascii():
        # Folding may put all of it on a second line, which readers show with a space before it.
        mail.policy = SMTP.clone(max_line_length=998)
    return mail


def _refusal(code: int, text: bytes | str, what: str) -> Delivery:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if code == 421 or not 400 <= code < 600:  # it goes out of service, or says something else than SMTP
        result = Result.FAILED
    else:
        result = Result.POSTPONED if code < 500 else Result.REFUSED
    return Delivery(result, f"{what}: {code} {' '.join(words.split())[:500]}")


def _line(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        return f"{error.smtp_code} {' '.join(text.split())[:500]}"
    return " ".join(str(error).split()) or type(error).__name__
