"""The mail sink as its launcher starts it: it takes mails, shows them, and lets none of them run anything."""

import asyncio
import json
import smtplib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path

import pytest
from aiosmtpd.smtp import Envelope

from tests.rig.waiting import await_that, patient
from tocsin.declare.model.errors import TransientError
from tocsin.dev.servers.mail_server import Mails
from tocsin.dev.servers.mail_sink import Mailbox, MailSink
from tocsin.dev.servers.ports import free_ports


@contextmanager
def running(sink: MailSink) -> Iterator[Mailbox]:
    launch = sink.launch("test")
    with launch.log.open("ab") as log:
        process = subprocess.Popen(
            launch.command, env=dict(launch.environment), cwd=launch.directory, stdout=log, stderr=log
        )
    try:
        await_that(lambda: sink.waiting_for() is None, 60, launch.log.read_text)
        yield Mailbox(sink.url)
    finally:
        process.terminate()
        assert process.wait(patient(10)) == 0


def read(url: str) -> tuple[str, str]:
    """What is at `url`, and what it may load."""
    with urllib.request.urlopen(url, timeout=patient(10)) as answer:
        return answer.read().decode(), answer.headers["Content-Security-Policy"]


def mail(subject: str, text: str) -> EmailMessage:
    made = EmailMessage()
    made["Subject"], made["From"], made["To"] = subject, "tocsin@example.com", "Ann <ann@example.com>, b@example.com"
    made.set_content(text)
    return made


def test_mails_are_shown_with_their_charts_run_nothing_and_outlive_the_server(tmp_path: Path) -> None:
    sink = MailSink(tmp_path / "mail", tmp_path / "log", *free_ports(2))
    rich = mail("<script>alert(1)</script>", "plain <b>")
    rich.add_alternative('<html><head></head><body><img src="cid:chart"></body></html>', subtype="html")
    rich.get_payload()[1].add_related(b"\x89PNG", "image", "png", cid="<chart>")  # type: ignore[union-attr, index]
    broken = b"Subject: =?nonsense?q?x?=\r\nContent-Type: text/plain; charset=nonsense\r\n\r\ntext\r\n"
    with running(sink) as box:
        assert box.mails() == []
        with smtplib.SMTP("127.0.0.1", sink.smtp_port, timeout=patient(10)) as client:
            client.send_message(rich)
            client.sendmail("a@example.com", ["b@example.com"], broken)
        first, second = box.mails()
        assert (first.to, first.subject, first.text) == ("ann@example.com", "<script>alert(1)</script>", "plain <b>")
        assert (second.to, second.text) == ("", "text")
        listed = json.loads(read(f"{box.address}/mails.json")[0])
        assert "cid:chart" in listed[0]["html"]
        page, _ = read(box.address)
        assert "<script" not in page
        assert f"href='/mail/{second.id}'" in page
        shown, loads = read(first.page)
        assert "plain &lt;b&gt;" in shown
        assert "<th>From<td>tocsin@example.com" in shown
        assert '<iframe sandbox="' in shown
        assert "allow-scripts" not in shown
        assert loads.startswith("default-src 'none'")
        html, loads = read(f"{first.page}/html")
        assert '<img src="data:image/png;base64,iVBORw==">' in html
        assert loads.startswith("default-src 'none'")
        shown, _ = read(second.page)
        assert "text" in shown
        assert "<iframe" not in shown
        for path in ("mail/1", "mail/../log", "nothing"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(f"{box.address}/{path}")
    with running(sink) as box:
        assert [one.id for one in box.mails()] == [first.id, second.id]
        with pytest.raises(TransientError, match="does not answer"):
            Mailbox(f"{box.address}/?").mails()  # which is the page
    with pytest.raises(TransientError, match="does not answer"):
        box.mails()


def test_the_oldest_go_and_a_full_disk_is_told_to_the_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.dev.servers.mail_server._KEPT", 2)
    (tmp_path / "aB3dE.eml").write_text("Subject: from the mail sink of an earlier release\n\n")
    mails, envelope = Mails(tmp_path), Envelope()
    for number in range(3):
        envelope.content = bytes(mail(f"number {number}", "x"))
        assert asyncio.run(mails.handle_DATA(None, None, envelope)) == "250 OK"  # type: ignore[arg-type]
    assert [one["subject"] for one in mails.listed()] == ["number 1", "number 2"]

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    answer = asyncio.run(mails.handle_DATA(None, None, envelope))  # type: ignore[arg-type]
    assert answer == "452 the mail cannot be stored: No space left on device"
