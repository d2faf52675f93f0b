"""Mails to the SMTP server: one connection for several, and refusals sorted by what to do about them."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from types import TracebackType

from tocsin.model.errors import TocsinError, TransientError
from tocsin.project.setting_blocks import SmtpSettings


class MailRefused(TocsinError):
    """The server refuses this mail or recipient for good; a retry does not help, and other mails may pass."""


class MailPostponed(TransientError):
    """The server refuses this mail or recipient for now; other mails may pass."""


class Mailer:
    """An SMTP connection that opens with the first mail; close it by leaving the `with` statement."""

    def __init__(self, settings: SmtpSettings) -> None:
        """Send through the server of `settings`."""
        self._settings = settings
        self._server: smtplib.SMTP | None = None

    def __enter__(self) -> Mailer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            try:
                server.quit()
            except (smtplib.SMTPException, OSError):
                server.close()

    def send(self, mail: EmailMessage, recipient: str) -> None:
        """Hand over one mail; it is accepted when this returns.

        Raises:
            MailRefused: refused for good (5xx for the recipient or the content).
            MailPostponed: refused for now (4xx).
            TransientError: the server is away, or takes no mail from this sender; no other mail would pass either.
            ConfigError: the password file cannot be read.
        """
        place = f"SMTP server {self._settings.host}:{self._settings.port}"
        self._server = self._server or self._connect(place)
        try:
            self._server.send_message(mail, self._settings.sender, [recipient])
        except smtplib.SMTPRecipientsRefused as error:
            code, text = error.recipients[recipient]
            raise _refusal(code, text, f"{place} refuses {recipient}") from error
        except smtplib.SMTPDataError as error:
            raise _refusal(error.smtp_code, error.smtp_error, f"{place} refuses the mail") from error
        except smtplib.SMTPNotSupportedError as error:
            raise MailRefused(f"{place} cannot carry the mail: {error}") from error
        except (smtplib.SMTPException, OSError) as error:
            server, self._server = self._server, None
            if server is not None:
                server.close()
            raise TransientError(f"{place}: {_line(error)}") from error

    def _connect(self, place: str) -> smtplib.SMTP:
        password = self._settings.password()
        try:
            return self._logged_in(password)
        except (smtplib.SMTPException, OSError) as error:
            raise TransientError(f"{place}: {_line(error)}") from error

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


def _refusal(code: int, text: bytes | str, what: str) -> TocsinError:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    message = f"{what}: {code} {' '.join(words.split())[:500]}"
    return MailPostponed(message) if 400 <= code < 500 else MailRefused(message)


def _line(error: Exception) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        return f"{error.smtp_code} {' '.join(text.split())[:500]}"
    return " ".join(str(error).split()) or type(error).__name__
