"""The page that tells operators what to do: a section for each condition that mails, and commands that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer import main

from tocsin.cli.app import app
from tocsin.setup.paths import here
from tocsin.supervise.incidents.conditions import Incident
from tocsin.supervise.incidents.watch import RUNBOOKS, notice_of
from tocsin.supervise.job_states import Condition

TEXT = (here().root / RUNBOOKS).read_text(encoding="utf-8")
SILENT = {Condition.FINE, Condition.RESTARTING}
"""Nobody gets a mail about these."""


@pytest.mark.parametrize("condition", sorted(set(Condition) - SILENT))
def test_the_mail_of_each_condition_names_its_runbook(condition: Condition) -> None:
    incident = Incident(job="detector:x", condition=condition, reason="why", at=1.0, last_at=1.0)
    (named,) = re.findall(
        r"Runbook: docs/run/runbooks\.md#(.+)", "\n".join(notice_of(incident, "x.log", []).paragraphs)
    )
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
    section = sections[named.replace("-", " ")]
    assert all(f"**{part}:**" in section for part in ("Means", "Look", "Do"))


def test_each_command_of_the_page_exists() -> None:
    named = re.findall(r"`tocsin ([a-z][a-z -]*)", TEXT)
    assert len(named) > 20
    for words in named:
        command: Any = main.get_command(app)
        for word in words.split():
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, f"tocsin {words}"
            command = command.commands[word]


def test_each_command_of_the_page_has_the_options_that_it_needs() -> None:
    for line in re.findall(r"`tocsin ([a-z][^`]*)`", TEXT):
        command: Any = main.get_command(app)
        words = line.split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if not words:  # a command that is named, not one to type
            continue
        needed = [one for one in getattr(command, "params", []) if one.required and one.param_type_name == "option"]
        for option in needed:
            assert any(name in words for name in option.opts), f"tocsin {line}: {option.opts[0]}"
