"""The command `tocsin`, called in this process; typer makes it of its functions once, which takes longest."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

from typer import main, testing

from tocsin.cli.app import app

_command = cache(main.get_command)


def invoke(words: Sequence[str], **options: Any) -> testing.Result:
    """Call `tocsin` with `words`; `options` are those of `CliRunner.invoke`."""
    # What an earlier test has sent to its own standard error, closed since, is not this command's.
    with mock.patch.object(testing, "_get_command", _command), mock.patch.object(logging.root, "handlers", []):
        return testing.CliRunner().invoke(app, words, **options)


def call(*words: str) -> tuple[int, str]:
    """Call `tocsin` with `words`, which fails only by its exit code; returns that and standard output."""
    done = invoke(words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout
