"""The browser in which the tests look at the pages: one that is installed, else Debian's Chromium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tocsin.model.errors import ConfigError
from tocsin.provision.process import Command, run

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_ASK = "install Chromium or Chrome so that it is found in PATH, then run: make setup-browser"


def find() -> Path | None:
    """The browser; None when there is none."""
    found = (shutil.which(name) for name in _NAMES)
    return next((Path(path) for path in found if path), None)


def install() -> bool:
    """Install Debian's Chromium unless there is a browser; returns whether anything had to be done.

    Raises:
        ConfigError: it cannot be installed here, or not by this user; says what to do.
        TransientError: apt-get failed; most often the network did, and a second run goes on.
    """
    if find() is not None:
        return False
    if shutil.which("apt-get") is None:
        raise ConfigError.one("PATH", f"holds no browser for the tests of the pages, and no apt-get; {_ASK}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        run([*_as_root(), "apt-get", *words], "apt-get, for the browser of the tests", env=quiet)
    if find() is None:
        raise ConfigError.one("PATH", f"holds no browser though the package chromium was installed; {_ASK}")
    return True


def _as_root() -> Command:
    """Find what lets this user install packages: nothing for root, else a sudo that asks no password."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        raise ConfigError.one("PATH", f"holds no browser, and this user may install none; {_ASK}")
    return ["sudo", "--non-interactive"]
