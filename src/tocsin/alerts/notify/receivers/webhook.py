"""Messages as JSON to a web address, signed so that its program knows the sender: see docs/run/alerts.md."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time

from tocsin.alerts.notify.channel import Delivery, Message, Result
from tocsin.alerts.notify.receivers.http_post import HttpPost
from tocsin.declare.blocks.receiver_settings import WebhookTarget
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import secret_in
from tocsin.declare.settings import Settings

SIGNATURE = "X-Tocsin-Signature"
_PREFIX = "webhook:"


class WebhookChannel:
    """Posts each message to the address of its recipient."""

    def __init__(self, settings: Settings) -> None:
        self._targets: dict[str, WebhookTarget] = settings.receivers.get("webhook", {})
        self._http = HttpPost()

    def close(self) -> None:
        """See `Channel.close`."""
        self._http.close()

    def send(self, message: Message) -> Delivery:
        """See `HttpPost.send`; a message to a NAME is signed, one to an address is not."""
        name = message.recipient.removeprefix(_PREFIX)
        headers = {"Idempotency-Key": re.sub(r"[^\x21-\x7e]", "_", message.id)}
        body = json.dumps(body_of(message), ensure_ascii=False).encode()
        if "://" in name:
            return self._http.send(name, body, headers)
        target = self._targets.get(name)
        if target is None:
            return Delivery(Result.REFUSED, f"the settings have no block [receivers.webhook.{name}]")
        try:
            secret = secret_in(target.secret_file, f"receivers.webhook.{name}.secret_file")
        except ConfigError as error:
            return Delivery(Result.POSTPONED, str(error))
        return self._http.send(target.url, body, headers | {SIGNATURE: signature(secret, body, int(time.time()))})


def body_of(message: Message) -> dict[str, object]:
    """Make the JSON object of a message; `alert` is null for one about several alerts, shown in `several`, or none."""
    shown = {"id", "date", "urgent", "subject", "text", "facts", "several", "alerts"}
    values = message.model_dump(mode="json", include=shown)
    return {"alert": values.pop("facts"), **values}


def signature(secret: str, body: bytes, at: int) -> str:
    """Sign `body` at a time, epoch seconds: HMAC-SHA256 of `TIME.BODY`, in hex."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"
