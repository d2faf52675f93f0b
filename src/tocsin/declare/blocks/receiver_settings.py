"""The settings of receivers: blocks `[receivers.KIND.NAME]`, whose NAME an address such as `webhook:NAME` names."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def check_name(name: str) -> None:
    """Check the name of a receiver's block; ValueError if it is none."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be the name of a block of settings, of small letters, digits, - and _, not {name!r}")


def check_address(url: str, *, plain_http: bool = False) -> str:
    """Return an address that messages may be posted to; ValueError for one that is not safe: others could read it.

    With `plain_http` it need not be https.
    """
    parts = urlsplit(url)
    if re.search(r"[\s\x00-\x1f\x7f]", url) or not parts.hostname or "@" in parts.netloc or len(url) > 2000:
        raise ValueError(f"must be an address such as https://example.com/alerts, without a login, not {url!r}")
    if parts.scheme != "https" and not (parts.scheme == "http" and (plain_http or _is_loopback(parts.hostname))):
        raise ValueError(f"must begin with https://, or lead to this machine, not {url!r}")
    _ = parts.port  # ValueError if it is none
    return url


def check_webhook(address: str) -> None:
    """Check what follows `webhook:`, a name or an address; ValueError if it is none."""
    if "://" in address:
        check_address(address)
    else:
        check_name(address)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


Url = Annotated[str, AfterValidator(check_address)]


class ReceiverTarget(BaseModel):
    """Base of every block: a key that it does not know is an error, and no value changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WebhookTarget(ReceiverTarget):
    """A receiver `webhook:NAME`, to which the facts of alerts are posted as JSON.

    Attributes:
        url: https, or of this machine.
        secret_file: file that holds the secret of the signature.
    """

    url: Url
    secret_file: Path


class PagerDutyTarget(ReceiverTarget):
    """A receiver `pagerduty:NAME`: a service of PagerDuty, or of another one that takes its Events API v2.

    Attributes:
        routing_key_file: file that holds the integration key of the service.
        webhook_secret_file: file that holds the secret of its webhook (v3), by which an answer there shows here.
        url: of the Events API.
    """

    routing_key_file: Path
    webhook_secret_file: Path | None = None
    url: Url = "https://events.pagerduty.com/v2/enqueue"


class AppriseTarget(ReceiverTarget):
    """A receiver `apprise:NAME`, one of the messengers that Apprise knows.

    Attributes:
        url_file: file, readable by its owner alone, that holds its one URL of Apprise, such as `slack://...`.
    """

    url_file: Path
