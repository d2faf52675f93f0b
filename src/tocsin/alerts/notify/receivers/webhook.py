"""Messages as JSON to a web address, signed so that its program knows the sender: see docs/run/alerts.md."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time

from tocsin.alerts.notify.channel import Delivery, Message
from tocsin.alerts.notify.receivers.named_target import NamedTargetChannel
from tocsin.declare.blocks.receiver_settings import WebhookTarget

SIGNATURE = "X-Tocsin-Signature"
_PREFIX = "webhook:"


class WebhookChannel(NamedTargetChannel[WebhookTarget]):
    """Posts each message to the address of its recipient."""

    secret = "secret_file"

    def send(self, message: Message) -> Delivery:
        """See `HttpPost.send`; a message to a NAME is signed, one to an address is not."""
        address = message.recipient.removeprefix(_PREFIX)
        return self._post(address, message) if "://" in address else super().send(message)

    def send_to(self, target: WebhookTarget, secret: str, message: Message) -> Delivery:
        """Post a signed message."""
        return self._post(target.url, message, secret)

    def _post(self, url: str, message: Message, secret: str | None = None) -> Delivery:
        headers = {"Idempotency-Key": re.sub(r"[^\x21-\x7e]", "_", message.id)}
        body = json.dumps(body_of(message), ensure_ascii=False).encode()
        if secret is not None:
            headers[SIGNATURE] = signature(secret, body, int(time.time()))
        return self._http.send(url, body, headers)


def body_of(message: Message) -> dict[str, object]:
    """Make the JSON object of a message; `alert` is null for one about several alerts, shown in `several`, or none."""
    shown = {"id", "date", "urgent", "subject", "text", "facts", "several", "alerts"}
    values = message.model_dump(mode="json", include=shown)
    return {"alert": values.pop("facts"), **values}


def signature(secret: str, body: bytes, at: int) -> str:
    """Sign `body` at a time, epoch seconds: HMAC-SHA256 of `TIME.BODY`, in hex."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"
