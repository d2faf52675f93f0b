"""Regular expressions that one record can stop, tried out before a job begins.

An overflow of the stack inside `rlike` ends the JVM, and a pattern that tries many ways never returns; either way the
same record comes back at each restart. So each pattern is run in the JVM of the job, on a thread whose stack is that of
a task, on texts as long as a record may be (ADR 0017).
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.source import Source, numbered_groups
from tocsin.quality.suites.row_rules import RowRule
from tocsin.quality.suites.suite_catalog import FOLDER
from tocsin.spark.engine import jvm
from tocsin.spark.plan_tree import Node

LONGEST_SECONDS = 5.0
_SHOWN = 60
_ON_TEXT = {"RLike", "StringSplit"} | {
    f"RegExp{name}" for name in ("Extract", "ExtractAll", "Replace", "InStr", "Count", "SubStr")
}


def check_source(spark: SparkSession, source: Source, rules: tuple[RowRule, ...]) -> None:
    """Try the patterns of `source`, those to ignore, and those of its `rules`.

    ConfigError, where a retry does not help, if one is none for Java, overflows its stack or takes too long.
    """
    faults, file = [], f"sources/{source.name}.toml"
    for pattern in source.patterns:
        faults += _faults(spark, rf"\A(?:{numbered_groups(pattern)[0]})\z", source, file, "pattern")
    for pattern in source.ignore:
        faults += _faults(spark, pattern, source, file, "ignore")
    for rule in rules:
        if "regex" in rule.rule.kwargs:
            where = f"{FOLDER}/{source.name}.rows.json"
            faults += _faults(spark, rule.rule.kwargs["regex"], source, where, f"{rule.name}.regex")
    if faults:
        raise ConfigError(faults)


def check_function(plan: Node, spark: SparkSession, function: tuple[Path, str], source: Source) -> None:
    """Try the patterns in `plan`, made by the `function` of a file: its path and its name. Errors as `check_source`."""
    faults = []
    for pattern in sorted(set(_literal_patterns(plan))):
        faults += _faults(spark, pattern, source, str(function[0]), function[1])
    if faults:
        raise ConfigError(faults)


def _literal_patterns(tree: Node) -> Iterator[str]:
    for node in tree.walk():
        for top in node.expressions():
            for expression in top.walk():
                if expression.kind in _ON_TEXT and len(expression.children) > 1:
                    pattern = expression.children[1]
                    if pattern.kind == "Literal" and pattern.fields.get("value") is not None:
                        yield str(pattern.fields["value"])


def _faults(spark: SparkSession, pattern: str, source: Source, where: str, key: str) -> list[Fault]:
    refusal = _refusal(spark, pattern, source.max_bytes)
    return [Fault(where, refusal, key=key)] if refusal else []


def _refusal(spark: SparkSession, pattern: str, longest: int) -> str:
    compile_ = spark.sparkContext._gateway.jvm.java.util.regex.Pattern.compile  # type: ignore[union-attr]  # no stubs
    try:
        compiled = compile_(pattern)
    except IllegalArgumentException as error:
        return f"is not a Java regular expression: {str(error).splitlines()[0]}"
    now: list[str] = []
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run() -> None:
        for text in hostile_texts(pattern, longest):
            now[:] = [text]
            try:
                compiled.matcher(text).find()
            except Py4JJavaError as error:
                if "StackOverflowError" not in str(error):
                    raise
                answers.put(_overflows(pattern, text))
                return
            answers.put("")

    def run_quietly() -> None:
        with contextlib.suppress(Exception):  # the JVM has ended meanwhile: the job reports that itself
            run()
        answers.put("done")

    threading.Thread(target=run_quietly, name="pattern", daemon=True).start()
    while (answer := _await_answer(answers)) == "":
        pass
    if answer is None:
        return _endless(pattern, now[0] if now else "")
    return "" if answer == "done" else answer


def _await_answer(answers: queue.SimpleQueue[str]) -> str | None:
    """Wait for the next answer; None when it takes more than LONGEST_SECONDS of CPU time: the machine may be busy."""
    began = _cpu_seconds()
    while True:
        try:
            return answers.get(timeout=LONGEST_SECONDS)
        except queue.Empty:
            if _cpu_seconds() - began >= LONGEST_SECONDS:
                return None


def _cpu_seconds() -> float:
    """Read the CPU time of the JVM."""
    taken = psutil.Process(jvm.process_id()).cpu_times()
    return taken.user + taken.system


def _overflows(pattern: str, text: str) -> str:
    return (
        f"{_quoted(pattern)} overflows Java's stack on {_described(text)}, which would end the job; make the repeated "
        'group possessive, (...)*+ for (...)*, or write it without alternatives, as in [^"]*'
    )


def _endless(pattern: str, text: str) -> str:
    return (
        f"{_quoted(pattern)} takes more than {LONGEST_SECONDS:.0f} s on {_described(text)}, which would stop the job; "
        "begin it with ^, make its repeats possessive or bounded, as in [^ ]{1,200}+, or lower max_bytes of the source"
    )


def _described(text: str) -> str:
    return f"{len(text.encode()):,} bytes like {_quoted(text)}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


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
