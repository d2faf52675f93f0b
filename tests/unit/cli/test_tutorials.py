"""Every call of the command that a tutorial shows is one that the command takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tocsin.cli.app import app

DOCS = Path(__file__).resolve().parents[3] / "docs"


def calls(page: str) -> list[str]:
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [call for block in blocks for call in re.findall(r"^(?:\$ )?tocsin (.*)$", block, re.MULTILINE)]


@pytest.mark.parametrize(("page", "least"), [("tutorial.md", 6), ("tutorial-views.md", 7)])
def test_its_verbs_and_options_exist(page: str, least: int) -> None:
    assert len(calls(page)) >= least
    for call in calls(page):
        command: Any = typer.main.get_command(app)
        words = shlex.split(call, comments=True)
        while hasattr(command, "commands"):
            assert words[0] in command.commands, call
            command, words = command.commands[words[0]], words[1:]
        command.make_context(call, words)  # refuses an option that is not there
