"""Check who may send for which source, by a file with `source:password` in each line, which nobody else can read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from pathlib import Path

from tocsin.declare.model.errors import ConfigError

_KEY = "drain.credentials_file"
_OTHERS = 0o077


class Credentials:
    """Passwords by source, kept as digests."""

    def __init__(self, passwords: dict[str, str]) -> None:
        self._digests = {source: _digest(password.encode()) for source, password in passwords.items()}

    def source_of(self, authorization: bytes) -> str | None:
        """Return the source whose name and password a header of HTTP basic authentication holds, else None."""
        scheme, _, text = authorization.partition(b" ")
        if scheme.lower() != b"basic":
            return None
        try:
            user, _, password = base64.b64decode(text.strip(), validate=True).partition(b":")
            source = user.decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        expected = self._digests.get(source, b"")
        return source if hmac.compare_digest(_digest(password), expected) else None


def read_passwords(path: Path) -> dict[str, str]:
    """Read the passwords in `path`, by source; lines that are empty or begin with # do not count.

    ConfigError if the file cannot be read, others can read it, or a line is none of ours.
    """
    try:
        if path.stat().st_mode & _OTHERS:
            raise ConfigError.one(path, f"can be read by others; run: chmod 600 {path}", key=_KEY)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "is not UTF-8"
        raise ConfigError.one(path, f"cannot be read: {what}", key=_KEY) from error
    passwords: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        source, colon, password = line.strip().partition(":")
        if source.startswith("#") or not (source or colon):
            continue
        if not (source and password):
            raise ConfigError.one(path, "must be source:password", key=_KEY, line=number)
        passwords[source] = password
    if not passwords:
        raise ConfigError.one(path, "names no source: write source:password", key=_KEY)
    return passwords


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()
