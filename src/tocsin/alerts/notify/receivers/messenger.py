"""Messages to Slack, Teams, Telegram, ntfy and some hundred other services, through Apprise."""

from __future__ import annotations

import logging
from pathlib import Path

import apprise

from tocsin.alerts.notify.channel import Delivery, Message, Result
from tocsin.alerts.notify.receivers.named_target import NamedTargetChannel
from tocsin.declare.blocks.receiver_settings import AppriseTarget
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.sizes import printable
from tocsin.platform import private

# It logs a URL that it cannot read, with its password; of messages a `Delivery` says the same.
logging.getLogger("apprise").propagate = False
_SECONDS = 60.0


class AppriseChannel(NamedTargetChannel[AppriseTarget]):
    """Hands each message to the service in the file of its recipient, as plain text."""

    secret = "url_file"

    def send_to(self, target: AppriseTarget, secret: str, message: Message) -> Delivery:
        """Hand over one message. Apprise does not say whether a service refuses it, so it is tried again later."""
        # A message that is sent on to another address comes there without its text, and counts as taken.
        asset = apprise.AppriseAsset(service_timeout=_SECONDS, app_id="Tocsin", http_redirects=False)
        service = _service(secret, target.url_file, asset)
        sender = apprise.Apprise(asset=asset)
        sender.add(service)
        kind = apprise.NotifyType.FAILURE if message.urgent else apprise.NotifyType.WARNING
        result = sender.notify(message.text, printable(message.subject), kind, apprise.NotifyFormat.TEXT)
        if result:
            return Delivery(Result.SENT)
        # The URL itself holds the password; what Apprise logs does not.
        why = " ".join(printable(entry.message) for entry in result.logs())[:500]
        return Delivery(Result.FAILED, f"{message.recipient}: {why or 'Apprise does not say why'}")


def _service(url: str, file: Path, asset: apprise.AppriseAsset) -> apprise.NotifyBase:
    private.refuse_shared(file)
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None or "\n" in url:
        raise ConfigError.one(file, "must hold one URL that Apprise knows (github.com/caronc/apprise/wiki)")
    if "overflow=" not in url:  # a service refuses what is too long
        service.overflow_mode = apprise.OverflowMode.TRUNCATE
    return service
