"""Mail operators at once, without an outbox: for what keeps an outbox from being written or sent."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime

import structlog

from tocsin.alerts.notify.channel import Channels, Result
from tocsin.alerts.notify.mail.compose import Envelope, Notice, notice_mail
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings

log = structlog.get_logger()


def operators(catalog: Catalog, settings: Settings) -> list[str]:
    """List who hears of what is nobody's: the recipients of urgent mails, else the owners of all sources."""
    return list(settings.alerts.urgent_recipients) or sorted({source.owner for source in catalog.sources.values()})


def send_now(notice: Notice, to: Collection[str], settings: Settings) -> set[str]:
    """Send `notice` to each address; returns those that need no other try: it was taken, or refused for good.

    Raises:
        ConfigError: the password of the mail server cannot be read.
    """
    reached = set()
    with Channels(settings) as channels:
        for number, address in enumerate(to):
            message_id = f"<{time.time_ns()}-{number}@{settings.smtp.domain}>"
            envelope = Envelope(recipient=address, message_id=message_id, date=datetime.now(UTC))
            delivery = channels.send(notice_mail(notice, envelope))
            log.warning("mail at once", to=address, subject=notice.subject, result=delivery.result, why=delivery.reason)
            if delivery.result in (Result.SENT, Result.REFUSED):
                reached.add(address)
    return reached
