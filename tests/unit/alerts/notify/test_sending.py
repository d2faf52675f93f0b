from __future__ import annotations

from unittest.mock import Mock

import pytest

from tocsin.alerts.notify.notifier import Sends
from tocsin.alerts.notify.outbox import OutgoingMail


@pytest.mark.parametrize(
    ("recipient", "to_one", "to_all"),
    [("owner@example.com", 4, 8), ("webhook:tickets", 1, 6), ("pagerduty:oncall", 1, 6)],
)
def test_a_person_gets_several_mails_at_a_time_and_a_program_one_message(
    recipient: str, to_one: int, to_all: int
) -> None:
    """So that a mail does not wait for the evidence of another, and a program learns of things in their order."""
    sends, others = Sends(), [f"{recipient}{number % 5}" for number in range(10)]
    under_way = dict.fromkeys([recipient, *others], 0)
    for number, to in enumerate([*[recipient] * 5, *others]):
        mail = Mock(OutgoingMail, recipient=to, message_id=f"<{number}@example.com>")
        if sends.has_room(to, mail.message_id):
            sends.start(Mock(), mail, Mock())
            under_way[to] += 1
            assert not sends.has_room(to, mail.message_id), "it is under way"
    assert under_way[recipient] == to_one
    assert len(sends) == to_all
