"""Messages as mails to the SMTP server: one connection for several."""

from __future__ import annotations

import smtplib
import ssl
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from tocsin.alerts.notify.channel import PICTURE, Delivery, Message, Result
from tocsin.model.sizes import printable
from tocsin.project.setting_blocks import SmtpSettings


class SmtpChannel:
    """An SMTP connection that opens with the first mail."""

    def __init__(self, settings: SmtpSettings) -> None:
        """Send through the server of `settings`."""
        self._settings = settings
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

        The server is away as well when it takes no mail from this sender: no other mail would pass either.
        """
        place = f"SMTP server {self._settings.host}:{self._settings.port}"
        mail, recipient = as_mail(message, self._settings), message.recipient
        password = self._settings.password()
        try:
            self._server = self._server or self._logged_in(password)
        except (smtplib.SMTPException, OSError) as error:
            return Delivery(Result.AWAY, f"{place}: {_line(error)}")
        try:
            self._server.send_message(mail, self._settings.sender, [recipient])
        except smtplib.SMTPRecipientsRefused as error:
            return _refusal(*error.recipients[recipient], f"{place} refuses {recipient}")
        except smtplib.SMTPDataError as error:
            return _refusal(error.smtp_code, error.smtp_error, f"{place} refuses the mail")
        except smtplib.SMTPNotSupportedError as error:
            return Delivery(Result.REFUSED, f"{place} cannot carry the mail: {error}")
        except (smtplib.SMTPException, OSError) as error:
            self._server.close()
            self._server = None
            return Delivery(Result.AWAY, f"{place}: {_line(error)}")
        return Delivery(Result.SENT)

    def _logged_in(self, password: str | None) -> smtplib.SMTP:
        settings = self._settings
        timeout = settings.timeout_seconds
        if settings.tls == "implicit":
            context = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(settings.host, settings.port, timeout=timeout, context=context)
        else:
            server = smtplib.SMTP(settings.host, settings.port, timeout=timeout)
        try:
            if settings.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
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
    mail["Subject"] = printable(message.subject).replace("=?", "=\\u003f")
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
    if message.subject.isascii():
        # Folding may put all of it on a second line, which readers show with a space before it.
        mail.policy = SMTP.clone(max_line_length=998)
    return mail


def _refusal(code: int, text: bytes | str, what: str) -> Delivery:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    message = f"{what}: {code} {' '.join(words.split())[:500]}"
    return Delivery(Result.POSTPONED if 400 <= code < 500 else Result.REFUSED, message)


def _line(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        return f"{error.smtp_code} {' '.join(text.split())[:500]}"
    return " ".join(str(error).split()) or type(error).__name__
