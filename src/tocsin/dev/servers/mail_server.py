"""Take mails by SMTP and show them on a page: `python -m tocsin.dev.servers.mail_server`. Nothing leaves the machine.

Each mail is a file of its folder, so a restart loses none. The page runs no script, and neither does what it shows: the
HTML of a mail stands in a sandboxed frame, and loads nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import email
import json
import signal
import sys
import time
from email.message import EmailMessage, Message
from email.policy import default
from email.utils import getaddresses
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tocsin.dev.servers.ports import LOOPBACK

_KEPT = 1000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-src 'self'"
_STYLE = "body{font:15px sans-serif;margin:2em}td,th{text-align:left;padding:.2em 1em .2em 0}"
_FRAME = 'sandbox="allow-popups allow-popups-to-escape-sandbox" style="width:100%;height:60em" title="as HTML"'


class Mails:
    """The mails of `folder`, by id; an id grows with the time of arrival. The oldest go when there are a thousand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # aiosmtpd's name for it
        """Store a mail; its sender gets the answer."""
        draft = self._folder / "draft"
        try:
            assert isinstance(envelope.content, bytes)  # text only where the server is told to decode
            draft.write_bytes(envelope.content)
            draft.rename(self._folder / f"{time.time_ns()}.eml")
            for old in self.ids()[:-_KEPT]:
                self._file(old).unlink(missing_ok=True)
        except OSError as error:
            return f"452 the mail cannot be stored: {error.strerror}"
        return "250 OK"

    def ids(self) -> list[str]:
        """List all, the oldest first."""
        return sorted(path.stem for path in self._folder.glob("*.eml") if path.stem.isdigit())

    def read(self, number: str) -> EmailMessage | None:
        """Parse one; None if there is none."""
        if not number.isdigit():
            return None
        try:
            return email.message_from_bytes(self._file(number).read_bytes(), policy=default)
        except OSError:
            return None

    def listed(self) -> list[dict[str, Any]]:
        """List all as the page and programs see them, the oldest first."""
        found = ((number, self.read(number)) for number in self.ids())
        return [_summary(number, mail) for number, mail in found if mail is not None]

    def _file(self, number: str) -> Path:
        return self._folder / f"{number}.eml"


def _summary(number: str, mail: EmailMessage) -> dict[str, Any]:
    to = [{"address": address} for _, address in getaddresses([_header(mail, "To")])]
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(int(number) / 1e9))
    texts = {"text": _part(mail, "plain"), "html": _part(mail, "html")}
    return {"id": number, "time": at, "to": to, "subject": _header(mail, "Subject"), **texts}


def _header(mail: EmailMessage, name: str) -> str:
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # the parser's, of a broken header
        return str(mail.get(name, ""))
    return ""


def _part(mail: EmailMessage, kind: str) -> str:
    body = mail.get_body(preferencelist=(kind,))
    if body is None:
        return ""
    try:
        return str(body.get_content())
    except (ValueError, LookupError):  # of a charset that nobody knows
        return _bytes(body).decode(errors="replace")


def _framed_html(mail: EmailMessage) -> str:
    """Read its html text, with the images that belong to it; its links leave the frame."""
    text = _part(mail, "html").replace("<head>", '<head><base target="_blank">', 1)
    for image in mail.walk():
        if name := str(image.get("Content-ID", "")).strip("<> "):
            data = base64.b64encode(_bytes(image)).decode()
            text = text.replace(f"cid:{name}", f"data:{image.get_content_type()};base64,{data}")
    return text


def _bytes(part: Message) -> bytes:
    found = part.get_payload(decode=True)
    return found if isinstance(found, bytes) else b""


def _list_page(mails: Mails) -> str:
    rows = "".join(
        f"<tr><td>{mail['time']}<td>{escape(', '.join(to['address'] for to in mail['to']))}"
        f"<td><a href='/mail/{mail['id']}'>{escape(mail['subject'] or '(no subject)')}</a>"
        for mail in reversed(mails.listed())
    )
    table = f"<table><tr><th>Arrived (UTC)<th>To<th>Subject{rows}</table>"
    return _page("Mails", table, '<meta http-equiv="refresh" content="5">')


def _mail_page(number: str, mail: EmailMessage) -> str:
    names = dict.fromkeys(mail.keys())
    headers = "".join(f"<tr><th>{escape(name)}<td>{escape(_header(mail, name))}" for name in names)
    frame = f"<iframe {_FRAME} src='/mail/{number}/html'></iframe>" if _part(mail, "html") else ""
    text = f"<details open><summary>Text</summary><pre>{escape(_part(mail, 'plain'))}</pre></details>"
    more = f"<details><summary>Headers</summary><table>{headers}</table></details>"
    return _page(_header(mail, "Subject"), f"<p><a href='/'>All mails</a></p>{frame}{text}{more}")


def _page(title: str, body: str, head: str = "") -> str:
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8>{head}<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}"
    )


class _Answer(BaseHTTPRequestHandler):
    mails: Mails

    def do_GET(self) -> None:
        place = self.path.partition("?")[0].strip("/").split("/")
        mail = self.mails.read(place[1]) if place[0] == "mail" and len(place) > 1 else None
        match place:
            case [""]:
                self._send(_list_page(self.mails))
            case ["mails.json"]:
                self._send(json.dumps(self.mails.listed()), "application/json")
            case ["mail", number] if mail is not None:
                self._send(_mail_page(number, mail))
            case ["mail", _, "html"] if mail is not None:
                self._send(_framed_html(mail))
            case _:
                self.send_error(404)

    def _send(self, text: str, kind: str = "text/html") -> None:
        content = text.encode(errors="replace")
        self.send_response(200)
        for name, value in (("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests: the demo asks twice a second."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; port 0 is a free one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--smtp", type=int, required=True, help="port that takes mail")
    parser.add_argument("--page", type=int, required=True, help="port of the page")
    parser.add_argument("--folder", type=Path, required=True, help="holds the mails")
    parser.add_argument("--label", action="append", default=[], help="name=value, shown in the process list, not used")
    options = parser.parse_args(arguments)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: sys.exit(0))
    mails = Mails(options.folder)
    controller = Controller(mails, hostname=options.host, port=options.smtp, ready_timeout=30)
    answer = type("Answer", (_Answer,), {"mails": mails})
    with ThreadingHTTPServer((options.host, options.page), answer) as page:
        controller.start()
        try:
            page.serve_forever(poll_interval=0.2)
        finally:
            controller.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
