"""Texts that are hard for a regular expression, made from the expression itself: pure, no JVM.

Java's matcher tries one way after the other. It recurses on some repeated groups, so that a long text overflows its
stack, and where two ways lead to the same text it may try them all. Both show on a text that runs through one repeat
again and again. The pattern is read with Python's parser, so what only Java knows is replaced by something like it;
what even then cannot be read is tried with repetitions of what is written in it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

_JAVA_ONLY = (
    (r"\\p\{(?:Digit|IsDigit|Nd|N)\}", r"\\d"),
    (r"\\[pP]\{\w+\}", r"\\w"),
    (r"\\h", " "),
    (r"\\R", "\n"),
    (r"\\[zZ]", "$"),
    (r"\\x\{(\w+)\}", r"\\u\1"),
    (r"\(\?<([A-Za-z]\w*)>", "("),
    (r"^\(\?[a-zA-Z-]+\)", ""),
)
_TRIED = "a0 😀_-.,;:/\"'\\=|é\n\t!Z"
_ENDS = ("", "\x01")
_MANY = 32
_MOST = 120

Pump = tuple[str, str]
"""What comes first, and what follows again and again."""


def hostile_texts(pattern: str, longest: int) -> Iterator[str]:
    """Yield texts of at most `longest` bytes, for each repeat of `pattern` some that run through it very often."""
    for start, again in dict.fromkeys(_pumps(pattern)):
        room = longest - len(start.encode()) - 1
        times = room // len(again.encode())
        if times > 0:
            for end in _ENDS:
                yield start + again * times + end


def _pumps(pattern: str) -> list[Pump]:
    tree = _tree(pattern)
    found = [] if tree is None else list(_repeats(list(tree), ""))
    written = re.findall(r"[A-Za-z0-9 ]+|[^\w\\()\[\]{}*+?|^$.]", pattern)
    return [*found, *(("", text) for text in [*written, *"a0 "])][:_MOST]


def _tree(pattern: str) -> Any:
    for java, python in _JAVA_ONLY:
        pattern = re.sub(java, python, pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that && means an intersection some day: in Java it does
            return re._parser.parse(pattern)  # type: ignore[attr-defined]  # not in the stubs
    except (re.error, OverflowError, RecursionError):
        return None


def _repeats(nodes: list[tuple[Any, Any]], start: str) -> Iterator[Pump]:
    """Yield for each repeat in `nodes` texts that lead to it from `start`, and texts that it takes repeatedly."""
    for kind, argument in nodes:
        name = str(kind)
        if name.endswith("_REPEAT"):
            _, most, inner = argument
            bodies = _bodies(list(inner))
            if int(most) > _MANY:
                yield from ((start, body) for body in bodies)
                # Whoever searches begins anew wherever the text begins anew.
                yield from ((("", start + body)) for body in bodies[:1] if start)
            yield from _repeats(list(inner), start)
        for branch in _branches(name, argument):
            yield from _repeats(branch, start)
        start += _sample([(kind, argument)])


def _branches(name: str, argument: Any) -> list[list[tuple[Any, Any]]]:
    if name == "SUBPATTERN":
        return [list(argument[-1])]
    if name == "ATOMIC_GROUP":
        return [list(argument)]
    return [list(branch) for branch in argument[1]] if name == "BRANCH" else []


def _bodies(inner: list[tuple[Any, Any]]) -> list[str]:
    """Make texts that the inside of a repeat takes: with each alternative, with the least, and some in a row."""
    while len(inner) == 1 and str(inner[0][0]) == "SUBPATTERN":
        inner = list(inner[0][1][-1])
    single = len(inner) == 1
    if single and str(inner[0][0]) == "BRANCH":
        texts = [
            text for branch in inner[0][1][1] for text in (_sample(list(branch)), _sample(list(branch), least=True))
        ]
    elif single:
        texts = _characters(*inner[0])[:4] or [_sample(inner)]
    else:
        texts = [_sample(inner), _sample(inner, least=True)]
    return [text for text in dict.fromkeys([*texts, "".join(dict.fromkeys(texts))]) if text]


def _sample(nodes: list[tuple[Any, Any]], *, least: bool = False) -> str:
    """Make a short text that `nodes` take; what may be absent is there, unless the `least` is asked for."""
    text = ""
    for kind, argument in nodes:
        name = str(kind)
        if name.endswith("_REPEAT"):
            low, _, inner = argument
            text += _sample(list(inner), least=least) * max(int(low), 0 if least else 1)
        elif inside := _branches(name, argument):
            text += _sample(inside[0], least=least)
        else:
            text += "".join(_characters(kind, argument)[:1])
    return text


def _characters(kind: Any, argument: Any) -> list[str]:
    """Find characters that a node takes, if it takes single ones; the literal one, or some of those that are tried."""
    name = str(kind)
    if name == "LITERAL":
        return [chr(argument)]
    if name == "ANY":
        return [character for character in _TRIED if character != "\n"]
    if name == "NOT_LITERAL":
        return [character for character in _TRIED if ord(character) != argument]
    if name != "IN":
        return []
    negated = str(argument[0][0]) == "NEGATE"
    taken = [character for character in _TRIED if any(_takes(item, character) for item in argument) != negated]
    return taken or [chr(item[1] if str(item[0]) == "LITERAL" else item[1][0]) for item in argument[:1]]


def _takes(item: tuple[Any, Any], character: str) -> bool:
    kind, argument = str(item[0]), item[1]
    if kind == "LITERAL":
        return bool(ord(character) == argument)
    if kind == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    if kind != "CATEGORY":
        return False
    name = str(argument).rsplit("_", 1)[-1]
    known = {
        "DIGIT": character.isdigit(),
        "SPACE": character.isspace(),
        "WORD": character.isalnum() or character == "_",
    }
    return known.get(name, False) != ("_NOT_" in str(argument))
