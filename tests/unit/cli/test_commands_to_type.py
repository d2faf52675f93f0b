"""Every call of the command that a page, a rule, a mail or a message tells people to type is one that it takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tocsin.cli.app import app
from tocsin.quality.verdict import judge_or_accept
from tocsin.supervise.incidents.watch import RUNBOOKS

ROOT = Path(__file__).resolve().parents[3]
# ADRs and the changelog tell of the past; `cli.md` is made from the command.
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if path.name not in ("CHANGELOG.md", "cli.md") and path.parent.name != "adr"
)
OTHERS = sorted(
    path
    for folder, kinds in {
        "src": ("html", "txt", "js"),
        "docs": ("yml", "json", "service", "timer"),
        "examples": ("sh",),
    }.items()
    for kind in kinds
    for path in (ROOT / folder).rglob(f"*.{kind}")
    if "egg-info" not in str(path)
)
_VALUE = "VALUE"
_TO_RUN = re.compile(r"(?:\brun:? |(?:first|it|again|before): )`?tocsin ([^`;,.)\n]+)(?=[`;,.)\n]|$)")
_COMMAND: Any = typer.main.get_command(app)


def fault(call: str, *, is_whole: bool) -> str:
    """Say what the command refuses of `call`, without the word `tocsin`; of one that `is_whole` also what it lacks."""
    command, words = _COMMAND, shlex.split(call, comments=True)
    while hasattr(command, "commands"):
        if "" in command.commands and not (words and words[0] in command.commands):
            words = ["", *words]
        if not words or words[0].startswith("-") or words[0] in ("...", "COMMAND", _VALUE):
            return "it lacks a verb" if is_whole and not words else ""
        if words[0] not in command.commands:
            return f"there is no verb {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    words = words[: words.index("...")] if "..." in words else words
    context = command.context_class(command)
    try:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
    except Exception as error:
        return "" if not is_whole and "requires an argument" in str(error) else str(error)
    lacking = [one.name for one in command.params if one.required and given.get(one.name) in (None, ())]
    return f"it takes no {rest[0]}" if rest else f"it lacks {', '.join(lacking)}" if is_whole and lacking else ""


def fault_in(text: str) -> str:
    """Say what the command refuses of a call with prose behind it: as much of it counts as can be a call."""
    words = re.split(r"[.;,:)](?:\s|$)|\n|`", text)[0].split()
    first = ""
    for count in range(len(words), 0, -1):
        found = fault(shlex.join(words[:count]), is_whole=False)
        if not found:
            following = words[count : count + 1]
            return first if following and (following[0].startswith("-") or _VALUE in following[0]) else ""
        first = found
    return first


def filled(text: str) -> str:
    """Put a value in the place of each part that a template or a reader fills in."""
    text = text.replace("[tocsin]", "")  # subjects of mails begin so
    text = re.sub(r"\{\{.*?\}\}|<[^>]*>|\{[^}]*\}|\$\{.*?\}", _VALUE, text)
    return re.sub(r"[\[\]]", "", text)


def calls_in_page(text: str) -> Iterator[tuple[str, bool]]:
    """Give the calls of a page in Markdown: lines of blocks are whole, those in a sentence may name a verb alone."""
    for block in re.findall(r"^ *```(?:sh|console|bash)?\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        lines = re.sub(r"\\\n\s*", "", block)
        for call in re.findall(r"^ *(?:\$ )?(?:\.venv/bin/)?tocsin (.*)$", lines, re.MULTILINE):
            yield re.split(r"\s[|>&]", filled(call))[0], True
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    for call in re.findall(r"`(?:\.venv/bin/)?tocsin ([^`]+)`", prose):
        yield re.split(r"\s[|>&]", " ".join(filled(call).split()))[0], False


def texts_of(path: Path) -> Iterator[str]:
    """Give the texts of a Python file, with a value in each place that is filled in."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else _VALUE for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def mentions(text: str) -> Iterator[str]:
    """Give what follows the word `tocsin` where a verb may come."""
    yield from re.findall(r"(?<![\w./\[-])tocsin (?=[a-z])(?!import )([^\"']*)", filled(re.sub("</?code>", "`", text)))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_calls_of_pages_are_taken(path: Path) -> None:
    found = {call: fault(call, is_whole=whole) for call, whole in calls_in_page(path.read_text(encoding="utf-8"))}
    assert {call: what for call, what in found.items() if what} == {}


def test_calls_of_runbooks_lack_nothing_but_where_a_verb_alone_is_named() -> None:
    calls = {call for call, _ in calls_in_page((ROOT / RUNBOOKS).read_text(encoding="utf-8"))}
    typed = {call: fault(call, is_whole=True) for call in calls if not re.fullmatch(r"[a-z]+( [a-z]+)?", call)}
    assert {call: what for call, what in typed.items() if what} == {}
    assert len(typed) > 15


def test_calls_of_rules_mails_and_pages_are_taken() -> None:
    found = {
        (path.name, call): fault_in(call) for path in OTHERS for call in mentions(path.read_text(encoding="utf-8"))
    }
    assert {call: what for call, what in found.items() if what} == {}
    assert len(found) >= 5


def test_calls_of_messages_are_taken() -> None:
    files = [path for path in (ROOT / "src").rglob("*.py")]
    found = {(path.name, call): fault_in(call) for path in files for text in texts_of(path) for call in mentions(text)}
    assert {call: what for call, what in found.items() if what} == {}
    assert len(found) >= 50
    to_run = {call for path in files for text in texts_of(path) for call in _TO_RUN.findall(filled(text))}
    assert {call: what for call in to_run if (what := fault(call, is_whole=True))} == {}
    assert len(to_run) >= 10


def test_what_the_command_does_not_take_is_found() -> None:
    assert fault("backfill VALUE", is_whole=True)
    assert fault_in("backfill VALUE and more")
    assert fault_in("history list --soure x")
    assert fault("parity", is_whole=True) == "it lacks detector"
    assert fault_in("status VALUE says why") == fault("parity", is_whole=False) == ""


def test_calls_for_a_refused_day_lack_nothing() -> None:
    calls = judge_or_accept("logins", date(2026, 1, 31))
    assert [fault(call.removeprefix("tocsin "), is_whole=True) for call in calls] == ["", ""]
