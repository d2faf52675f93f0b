"""Hashes of passwords, by scrypt, a bound on guesses, and the password of the first user."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import defaultdict
from pathlib import Path

from tocsin.declare.settings import Settings
from tocsin.platform.state_file import read_or_make_secret

_COST, _BLOCK, _PARALLEL = 2**14, 8, 1  # 16 MiB and some 50 ms a guess
_MEMORY = 64 * 2**20
GUESSES, WINDOW_SECONDS = 10, 600.0
"""So many wrong passwords for one name, or from one address, are answered within that time."""
_MOST_KEYS = 10_000


FIRST_USER = "operator"


def first_password_file(settings: Settings) -> Path | None:
    """Return the file with the password of `FIRST_USER`, made here if need be; None if the settings say who logs in.

    OSError if it cannot be made.
    """
    if settings.web.users or settings.web.oidc:
        return None
    path = settings.state / "web.password"
    read_or_make_secret(path)
    return path


def hash_password(password: str) -> str:
    """Hash `password` with a salt of its own, as `web.users` takes it."""
    salt = secrets.token_bytes(16)
    parts = (_COST, _BLOCK, _PARALLEL, _written(salt), _written(_scrypt(password, salt, _COST, _BLOCK, _PARALLEL)))
    return ":".join(["scrypt", *map(str, parts)])


def is_password(password: str, hashed: str) -> bool:
    """Return whether `hashed` was made of `password`; takes as long for each hash."""
    _, cost, block, parallel, salt, key = hashed.split(":")
    found = _scrypt(password, base64.urlsafe_b64decode(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(_written(found), key)


def _scrypt(password: str, salt: bytes, *costs: int) -> bytes:
    n, r, p = costs
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=32)


def _written(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


class Guesses:
    """The wrong passwords of the last minutes, by name and by address."""

    def __init__(self) -> None:
        self._at: dict[str, list[float]] = defaultdict(list)

    def blocked(self, *keys: str) -> bool:
        """Return whether one of `keys` has guessed too often."""
        since = time.monotonic() - WINDOW_SECONDS
        return any(sum(at > since for at in self._at.get(key, ())) >= GUESSES for key in keys)

    def add(self, *keys: str) -> None:
        """Count one more guess; the oldest are forgotten when there are too many keys."""
        for key in keys:
            self._at[key] = [*self._at.pop(key, [])[-GUESSES:], time.monotonic()]
        while len(self._at) > _MOST_KEYS:
            del self._at[next(iter(self._at))]

    def forget(self, *keys: str) -> None:
        """Begin anew, after the right password."""
        for key in keys:
            self._at.pop(key, None)
