"""The kinds of receivers that a message can go to: how their addresses look, their settings, and their channel.

To add one, write a module with its channel (see `tocsin.alerts.notify.channel.Channel`) and enter its record here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import email_validator
from pydantic import BaseModel, ValidationError

from tocsin.declare.blocks.receiver_settings import (
    AppriseTarget,
    PagerDutyTarget,
    WebhookTarget,
    check_name,
    check_webhook,
)
from tocsin.declare.model.errors import nearest

MAIL = "smtp"
_OTHERS = "tocsin.alerts.notify.receivers"

_KIND = re.compile(r"[a-z]+")

email_validator.SPECIAL_USE_DOMAIN_NAMES.clear()  # mail within a company goes to `localhost` and `.local` too


@dataclass(frozen=True)
class ReceiverKind:
    """One kind of receiver. Its addresses are `KIND:ADDRESS`; those of mail have no prefix.

    Attributes:
        channel: `module:class`, made from the settings of the installation. A text, since the declarations are read
            where the channel's libraries are missing.
        target: model of each of its blocks `[receivers.KIND.NAME]`, which addresses name; None if addresses say all.
        takes_updates: whether a program follows alerts here: it gets acknowledgements and resolutions, too, and e-mail
            alerts do not gather for `alerts.group_interval`.
    """

    channel: str
    check: Callable[[str], None]
    settings: type[BaseModel] | None = None
    target: type[BaseModel] | None = None
    takes_updates: bool = False


def check_mail(address: str) -> None:
    """Check an e-mail address by its form alone; ValueError if it is none."""
    try:
        email_validator.validate_email(
            address, check_deliverability=False, globally_deliverable=False, allow_domain_literal=True
        )
    except email_validator.EmailNotValidError as error:
        raise ValueError(f"must be one e-mail address, not {address!r}") from error


RECEIVERS: dict[str, ReceiverKind] = {
    MAIL: ReceiverKind("tocsin.alerts.notify.smtp:SmtpChannel", check_mail),
    "webhook": ReceiverKind(
        f"{_OTHERS}.webhook:WebhookChannel", check_webhook, target=WebhookTarget, takes_updates=True
    ),
    "pagerduty": ReceiverKind(
        f"{_OTHERS}.pagerduty:PagerDutyChannel", check_name, target=PagerDutyTarget, takes_updates=True
    ),
    "apprise": ReceiverKind(f"{_OTHERS}.messenger:AppriseChannel", check_name, target=AppriseTarget),
}


def kind_of(recipient: str) -> str:
    """Name the kind of receiver of `recipient`: that of `KIND:ADDRESS`, and mail for anything else."""
    kind, colon, _ = recipient.partition(":")
    return kind if colon and kind in RECEIVERS else MAIL


def check_recipient(recipient: str) -> str:
    """Return `recipient` if it is an address of one of the kinds; ValueError if it is none."""
    kind = kind_of(recipient)
    written, colon, _ = recipient.partition(":")
    if kind == MAIL and colon and _KIND.fullmatch(written):
        near = nearest(written, RECEIVERS)
        hint = f"; did you mean '{near}'?" if near else ""
        raise ValueError(f"'{written}' in {recipient!r} is no kind of receiver ({', '.join(sorted(RECEIVERS))}){hint}")
    RECEIVERS[kind].check(recipient.removeprefix(f"{kind}:"))
    return recipient


def check_known(recipient: str, settings: Mapping[str, Any]) -> None:
    """Check that `settings`, the blocks of `Settings.receivers`, have what an address names; ValueError if not."""
    kind, _, name = recipient.partition(":")
    if kind_of(recipient) != kind or RECEIVERS[kind].target is None or "://" in name:
        return
    known = settings.get(kind, {})
    if name not in known:
        near = nearest(name, known)
        hint = f"; did you mean '{kind}:{near}'?" if near else ""
        raise ValueError(f"'{recipient}' has no block [receivers.{kind}.{name}] in the settings{hint}")


def read_blocks(blocks: dict[str, Any]) -> dict[str, Any]:
    """Read the blocks `[receivers.KIND]` by the models of their kinds.

    ValueError if a kind is unknown or takes no settings, or a block does not fit its model.
    """
    read: dict[str, Any] = {}
    for kind, block in blocks.items():
        receiver = RECEIVERS.get(kind)
        if receiver is not None and receiver.target is not None:
            read[kind] = {name: _read(receiver.target, own, f"{kind}.{name}") for name, own in dict(block).items()}
        elif receiver is not None and receiver.settings is not None:
            read[kind] = _read(receiver.settings, block, kind)
        else:
            raise ValueError(f"{kind!r} is no kind of receiver that has settings")
    return read


def _read(model: type[BaseModel], block: Any, place: str) -> BaseModel:
    if not isinstance(block, dict):
        raise ValueError(f"{place} must be a block [receivers.{place}], not {block!r}")
    try:
        return model.model_validate(block)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, (place, *one['loc'])))}: {one['msg']}" for one in error.errors())
        raise ValueError("; ".join(faults)) from error
