"""Mails that wait until they have left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tocsin.alerts.notify.mail.compose import Notice
from tocsin.project.settings import Settings
from tocsin.supervision.incidents.mail_outbox import Outbox, addressed

MAIL = addressed(Notice(subject="held", paragraphs=("why",)), "one", "ann@example.com", Settings())


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path)


def test_a_mail_waits_until_it_has_left(outbox: Outbox) -> None:
    assert outbox.waiting() == []
    outbox.put("one", MAIL)
    outbox.put("one", MAIL)
    assert (outbox.waiting(), outbox.read("one")) == (["one"], MAIL)
    outbox.remove("one")
    outbox.remove("one")
    assert (outbox.waiting(), outbox.read("one")) == ([], None)


def test_what_nobody_took_for_a_week_is_given_up_and_said(outbox: Outbox) -> None:
    outbox.put("old", MAIL)
    outbox.put("new", MAIL)
    long_ago = time.time() - 7 * 86_400 - 1
    os.utime(outbox.folder / "old.json", (long_ago, long_ago))
    with capture_logs() as logs:
        assert outbox.waiting() == ["new"]
    assert [(line["log_level"], line["to"], line["subject"]) for line in logs] == [("error", "ann@example.com", "held")]
    assert outbox.read("old") is None


def test_what_has_left_does_not_wait_again(outbox: Outbox) -> None:
    outbox.put("one", MAIL)
    outbox.remove("one")
    outbox.put("one", MAIL)
    assert outbox.waiting() == []
    assert (outbox.has("on"), outbox.has("two")) == (True, False)
    long_ago = time.time() - 7 * 86_400 - 1
    os.utime(outbox.folder / "sent" / "one", (long_ago, long_ago))
    outbox.waiting()
    assert not outbox.has("one")
