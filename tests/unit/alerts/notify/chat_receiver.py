"""A kind of receiver as somebody would add it: this module, and `RECORD` in `tocsin.declare.receivers`."""

from pathlib import Path

from pydantic import BaseModel

from tocsin.alerts.notify.channel import Delivery, Message, Result
from tocsin.declare.receivers import ReceiverKind
from tocsin.declare.settings import Settings


class ChatSettings(BaseModel, frozen=True, extra="forbid"):
    """Where the chat is; `folder` of a room holds what it was told."""

    folder: Path


class Chat:
    """Writes each message to the folder of its room. What lies in `answer` there, it answers instead."""

    tries = closed = 0

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.receivers["chat"].folder

    def send(self, message: Message) -> Delivery:
        Chat.tries += 1
        for name in ("answer", message.subject):
            if (self._folder / name).exists():
                return Delivery(Result((self._folder / name).read_text()), "the chat hung up")
        room = self._folder / message.recipient
        room.mkdir(parents=True, exist_ok=True)
        (room / f"{len(list(room.iterdir()))}.json").write_text(message.model_dump_json())
        return Delivery(Result.SENT)

    def close(self) -> None:
        Chat.closed += 1


def check_room(address: str) -> None:
    if not address.isalpha():
        raise ValueError(f"must be chat:ROOM, not 'chat:{address}'")


RECORD = ReceiverKind(f"{__name__}:Chat", check_room, ChatSettings)
