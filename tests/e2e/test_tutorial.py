"""The first tutorial with its stack: the old log is played into it, and what it says must happen, happens."""

import json
import urllib.request
from pathlib import Path

import pytest

from tests.rig.stack import Stack
from tests.rig.tutorial_steps import follow
from tests.rig.waiting import await_that

pytestmark = pytest.mark.long


def test_it_can_be_followed_to_its_end(tmp_path: Path) -> None:
    stack = Stack(tmp_path, sources=False)
    variables = {"TOCSIN_PROJECT": str(stack.project), "TOCSIN_STATE": str(stack.state)}
    follow(range(1, 4), stack.project, variables)
    try:
        stack.up("--free-ports")
        stack.ready()
        follow(range(6, 7), stack.project, variables)
        await_that(lambda: _alerts(stack) == [("server_errors", {"route": "/pay"}, "email")], 60)
        await_that(lambda: any("Bursts of server errors" in one for one in _subjects(stack)), 120)
        told = follow(range(7, 8), stack.project, variables)
    finally:
        stack.end()
    assert "1 finding and 1 alert in 1 day" in told


def _alerts(stack: Stack) -> list[tuple[str, dict[str, str], str]]:
    found = json.loads(stack.tocsin("alerts", "--json").stdout)
    return [(one["detector"], one["entity"], one["level"]) for one in found]


def _subjects(stack: Stack) -> list[str]:
    url = json.loads((stack.state / "stack.json").read_text())["mail_url"]
    with urllib.request.urlopen(f"{url}/mails.json", timeout=60) as answer:
        return [one["subject"] for one in json.load(answer)]
