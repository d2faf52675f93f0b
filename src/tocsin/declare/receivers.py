"""The kinds of receivers that a message can go to: how their addresses look, their settings, and their channel.

To add one, write a module with its channel (see `tocsin.alerts.notify.channel.Channel`) and enter its record here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import email_validator
from pydantic import BaseModel

MAIL = "smtp"

email_validator.SPECIAL_USE_DOMAIN_NAMES.clear()  # mail within a company goes to `localhost` and `.local` too


@dataclass(frozen=True)
class ReceiverKind:
    """One kind of receiver. Its addresses are `KIND:ADDRESS`; those of mail have no prefix.

    Attributes:
        channel: `module:class`, made from the settings of the installation. A text, since the declarations are read
            where the channel's libraries are missing.
        check: raises ValueError for what is no ADDRESS of this kind.
        settings: model of its block `[receivers.KIND]`; None if it has none.
    """

    channel: str
    check: Callable[[str], None]
    settings: type[BaseModel] | None = None


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
}


def kind_of(recipient: str) -> str:
    """Name the kind of receiver of `recipient`: that of `KIND:ADDRESS`, and mail for anything else."""
    kind, colon, _ = recipient.partition(":")
    return kind if colon and kind in RECEIVERS else MAIL


def check_recipient(recipient: str) -> str:
    """Return `recipient` if it is an address of one of the kinds; ValueError if it is none."""
    kind = kind_of(recipient)
    RECEIVERS[kind].check(recipient.removeprefix(f"{kind}:"))
    return recipient


def read_blocks(blocks: dict[str, Any]) -> dict[str, Any]:
    """Read the blocks `[receivers.KIND]` by the models of their kinds.

    ValueError if a kind is unknown or takes no settings, or a block does not fit its model.
    """
    known = {kind: receiver.settings for kind, receiver in RECEIVERS.items() if receiver.settings is not None}
    for kind in blocks:
        if kind not in known:
            raise ValueError(f"{kind!r} is no kind of receiver that has settings")
    return {kind: known[kind].model_validate(block) for kind, block in blocks.items()}
